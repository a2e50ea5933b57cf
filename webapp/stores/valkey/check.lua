-- Write a value that belongs to no record, to find out whether the shard accepts writes.
-- KEYS[1] fence    why writes are refused, if they are
-- KEYS[2] checked  the opening that checked last
-- ARGV[1] opening  the id of the opening that checks
-- Returns 1, or the reason why writes are refused.
local why = redis.call('GET', KEYS[1])
if why then return why end
redis.call('SET', KEYS[2], ARGV[1])
return 1
