-- Find the record that holds a key.
-- KEYS[1] records  records by name
-- KEYS[2] holders  name of the record that has a key, by owner, kind and key
-- ARGV[1] holder   owner, kind and key
-- Returns the record, or nil.
local name = redis.call('HGET', KEYS[2], ARGV[1])
return name and redis.call('HGET', KEYS[1], name)
