-- Read all records of the next owners of one shard. All records of an owner are read at one moment.
-- KEYS[1] records  records by name
-- KEYS[2] owned    the names of all records, in order
-- ARGV[1] first    the beginning of the range of names
-- Returns where the next page begins (empty at the end), followed by the records.
local RECORDS, BYTES = 500, 4194304
local found, bytes, first = {''}, 0, ARGV[1]
while true do
    local next_name = redis.call('ZRANGEBYLEX', KEYS[2], first, '+', 'LIMIT', 0, 1)[1]
    if not next_name then return found end
    if #found > RECORDS or bytes > BYTES then
        found[1] = first
        return found
    end
    local owner = string.match(next_name, '^%Z*')
    local names = redis.call('ZRANGEBYLEX', KEYS[2], '[' .. owner .. '\0', '(' .. owner .. '\1')
    for _, name in ipairs(names) do
        local stored = redis.call('HGET', KEYS[1], name)
        found[#found + 1] = stored
        bytes = bytes + #stored
    end
    first = '(' .. owner .. '\1'
end
