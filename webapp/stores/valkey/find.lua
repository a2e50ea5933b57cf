-- Find the record that holds a key.
-- KEYS[1] records  a record by its name
-- KEYS[2] holders  the name of the record that holds a key, by owner, kind and key
-- ARGV[1] holder   owner, kind and key
-- Returns the record, or nil.
local name = redis.call('HGET', KEYS[2], ARGV[1])
return name and redis.call('HGET', KEYS[1], name)
