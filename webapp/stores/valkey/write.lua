-- Carry out the writes of many callers for owners of one shard, each of them all or none.
-- KEYS[1] fence    why nobody may write
-- KEYS[2] records  a record by its name
-- KEYS[3] holders  the name of the record that holds a key, by owner, kind and key
-- KEYS[4] owned    the names of all records, in order
-- KEYS[5] ids      kind, id and owner of all records, in order
-- KEYS[6] due      names by due_at
-- KEYS[7] erase    names by erase_at
-- KEYS[8] claims   until when somebody is at work on what was due, by name
-- ARGV[1] opening  who writes, for whom nothing is published
-- ARGV[2] channel  where the names of what was written are published
-- ARGV[3] behind   the fence that has to stand, for a load; empty: a write, for which none may
-- ARGV[4] writes   of each write its records: name, place in ids, version that must stand there
--                  (none: whichever does), place in holders, due_at, erase_at
-- ARGV[5...] stored these records as they are stored, in the same order
-- Returns for each write 1, or what stands in its way: a record, or 0 if the expected one is gone;
-- or why nobody may write; of a load nothing if another fence stands, or none.
local fence, records, holders, owned, ids = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local due, erase, claims = KEYS[6], KEYS[7], KEYS[8]
local behind = ARGV[3]
local is_load = behind ~= ''
local call = redis.call

local why = call('GET', fence)
if is_load then
    if why ~= behind then return {} end
elseif why then
    return why
end

local function place(owner, kind, key)
    return owner .. '\0' .. kind .. '\0' .. key
end

local function in_the_way(write, before)
    local names = {}
    for i, entry in ipairs(write) do
        local name, version = entry[1], entry[3]
        names[name] = true
        local stored = call('HGET', records, name)
        local header
        if stored then
            local _
            _, header = cmsgpack.unpack_one(stored, 4)
        end
        before[i] = header
        if version and version ~= (header and header[1] or '0') then return stored or 0 end
    end
    for _, entry in ipairs(write) do
        local holder = entry[4] and call('HGET', holders, entry[4])
        if holder and not names[holder] then return call('HGET', records, holder) end
    end
end

local function set_time(key, name, before, after)
    if after and after ~= before then
        call('ZADD', key, after, name)
    elseif before and not after then
        call('ZREM', key, name)
    end
end

local function carry_out(write, before, stored)
    -- A key that moves is released first, whichever of the two records comes first.
    for i, entry in ipairs(write) do
        local old = before[i]
        if old and old[2] then
            local held = place(old[5], old[6], old[2])
            if held ~= entry[4] then call('HDEL', holders, held) end
        end
    end
    for i, entry in ipairs(write) do
        local name, old = entry[1], before[i]
        call('HSET', records, name, ARGV[stored + i])
        if entry[4] then call('HSET', holders, entry[4], name) end
        if old then
            if old[3] then call('HDEL', claims, name) end
            set_time(due, name, old[3], entry[5])
            set_time(erase, name, old[4], entry[6])
        else
            call('ZADD', owned, 0, name)
            call('ZADD', ids, 0, entry[2])
            set_time(due, name, nil, entry[5])
            set_time(erase, name, nil, entry[6])
        end
    end
end

local answers, written, stored = {}, {}, 4
for i, write in ipairs(cmsgpack.unpack(ARGV[4])) do
    local before = {}
    local found = in_the_way(write, before)
    if found then
        answers[i] = found
    else
        carry_out(write, before, stored)
        answers[i] = 1
        for _, entry in ipairs(write) do written[#written + 1] = entry[1] end
    end
    stored = stored + #write
end
if #written > 0 and not is_load then
    -- Nobody reads a thousand names: with none at all, everything is to be looked at again.
    if #written > 1000 then written = {} end
    call('PUBLISH', ARGV[2], cmsgpack.pack({ARGV[1], written}))
end
return answers
