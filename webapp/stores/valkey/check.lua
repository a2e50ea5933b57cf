-- Write what changes no record, so that a shard that cannot be written to says so.
-- KEYS[1] fence    why nobody may write
-- KEYS[2] checked  who looked last
-- ARGV[1] opening  who looks
-- Returns 1, or why nobody may write.
local why = redis.call('GET', KEYS[1])
if why then return why end
redis.call('SET', KEYS[2], ARGV[1])
return 1
