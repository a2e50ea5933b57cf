-- Erase records of one shard: all of one owner, all that expired, or the expired ones of one owner.
-- KEYS[1] fence    why writes are refused, if they are
-- KEYS[2] records  records by name
-- KEYS[3] holders  name of the record that has a key, by owner, kind and key
-- KEYS[4] owned    the names of all records, in order
-- KEYS[5] ids      kind, id and owner of all records, in order
-- KEYS[6] due      names by due_at
-- KEYS[7] erase    names by erase_at
-- KEYS[8] claims   when the claim of a due record ends, by name
-- ARGV[1] owner    the owner, or empty for all owners (`before` is then required)
-- ARGV[2] before   the latest erase_at in microseconds, or empty to erase regardless of it
-- ARGV[3] limit    the maximum number of records
-- Returns the number of erased records, or the reason why writes are refused.
local CHUNK = 500
local call = redis.call
local owner, before, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local why = call('GET', KEYS[1])
if why then return why end

local names = {}
if owner == '' then
    names = call('ZRANGEBYSCORE', KEYS[7], '-inf', ARGV[2], 'LIMIT', 0, limit)
else
    local first = '[' .. owner .. '\0'
    while #names < limit do
        local found = call(
            'ZRANGEBYLEX', KEYS[4], first, '(' .. owner .. '\1', 'LIMIT', 0, CHUNK
        )
        for _, name in ipairs(found) do
            local erase_at = before and call('ZSCORE', KEYS[7], name)
            if #names < limit and (not before or erase_at and tonumber(erase_at) <= before) then
                names[#names + 1] = name
            end
        end
        if #found < CHUNK then break end
        first = '(' .. found[#found]
    end
end

for _, name in ipairs(names) do
    local _, header = cmsgpack.unpack_one(call('HGET', KEYS[2], name), 4)
    local key, of, kind, id = header[2], header[5], header[6], header[7]
    if key then call('HDEL', KEYS[3], of .. '\0' .. kind .. '\0' .. key) end
    call('HDEL', KEYS[2], name)
    call('ZREM', KEYS[4], name)
    call('ZREM', KEYS[5], kind .. '\0' .. id .. '\0' .. of)
    call('ZREM', KEYS[6], name)
    call('ZREM', KEYS[7], name)
    call('HDEL', KEYS[8], name)
end
return #names
