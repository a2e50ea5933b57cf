-- Look what is due in one shard and claimed by nobody, oldest first.
-- KEYS[1] fence   why nobody may write
-- KEYS[2] due     names by due_at
-- KEYS[3] claims  until when somebody is at work on what was due, by name
-- ARGV[1] now     in microseconds
-- ARGV[2] held    the latest end of a claim that holds anybody up
-- ARGV[3] limit   how many at most
-- Returns time and name of each; or why nobody may write.
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
