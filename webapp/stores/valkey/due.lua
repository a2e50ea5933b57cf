-- Find the records of one shard that are due and not claimed, the oldest first.
-- KEYS[1] fence   why writes are refused, if they are
-- KEYS[2] due     names by due_at
-- KEYS[3] claims  when the claim of a due record ends, by name
-- ARGV[1] now     the time in microseconds
-- ARGV[2] held    claims that end later than this are ignored (in microseconds)
-- ARGV[3] limit   the maximum number of records
-- Returns the due time and the name of each, or the reason why writes are refused.
local CHUNK = 500
local now, held, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local why = redis.call('GET', KEYS[1])
if why then return why end
local free, offset = {}, 0
while #free < 2 * limit do
    local found = redis.call(
        'ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[1], 'WITHSCORES', 'LIMIT', offset, CHUNK
    )
    for i = 1, #found, 2 do
        local claimed = tonumber(redis.call('HGET', KEYS[3], found[i]) or ARGV[1])
        if not (now < claimed and claimed <= held) then
            free[#free + 1] = found[i + 1]
            free[#free + 1] = found[i]
            if #free == 2 * limit then break end
        end
    end
    if #found < 2 * CHUNK then break end
    offset = offset + CHUNK
end
return free
