-- Read all records of some owners of one shard, of each as they are at one moment.
-- KEYS[1] records  a record by its name
-- KEYS[2] owned    the names of all records, in order
-- ARGV[1] first    where to begin
-- Returns where to go on, or nothing at the end, and then the records.
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
