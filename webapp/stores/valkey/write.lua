-- Carry out the writes of several callers for owners of one shard. Of each write, all records are
-- written or none.
-- KEYS[1] fence    why writes are refused, if they are
-- KEYS[2] records  records by name
-- KEYS[3] holders  name of the record that has a key, by owner, kind and key
-- KEYS[4] owned    the names of all records, in order
-- KEYS[5] ids      kind, id and owner of all records, in order
-- KEYS[6] due      names by due_at
-- KEYS[7] erase    names by erase_at
-- KEYS[8] claims   when the claim of a due record ends, by name
-- ARGV[1] opening  the id of the opening that writes, which ignores its own notifications
-- ARGV[2] channel  the channel that receives the names of the written records
-- ARGV[3] behind   for a load, the fence that must be set; empty for a write
-- ARGV[4] writes   the records of each write: name, member of `ids`, expected version (none: do not
--                  compare), field of `holders`, due_at, erase_at
-- ARGV[5...] stored these records as stored, in the same order
-- Returns for each write 1, or the record that it conflicts with, or 0 if the expected record does
-- not exist. If writes are refused, returns the reason instead. A load whose fence is not set
-- returns an empty list.
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
    -- First release all keys that move: the record that receives a key can come before its holder.
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
    -- For more than 1,000 names, publish an empty list: the other openings then check everything.
    if #written > 1000 then written = {} end
    call('PUBLISH', ARGV[2], cmsgpack.pack({ARGV[1], written}))
end
return answers
