-- Claim what was found due in one shard, unless it was written or claimed since.
-- KEYS[1] fence    why nobody may write
-- KEYS[2] records  a record by its name
-- KEYS[3] due      names by due_at
-- KEYS[4] claims   until when somebody is at work on what was due, by name
-- ARGV[1] now      in microseconds
-- ARGV[2] held     the latest end of a claim that holds anybody up
-- ARGV[3] until    when the claim ends
-- ARGV[4...] names of what was found
-- Returns the records that are claimed now; or why nobody may write.
local now, held = tonumber(ARGV[1]), tonumber(ARGV[2])
local why = redis.call('GET', KEYS[1])
if why then return why end
local claimed = {}
for i = 4, #ARGV do
    local name = ARGV[i]
    local due_at = redis.call('ZSCORE', KEYS[3], name)
    local other = tonumber(redis.call('HGET', KEYS[4], name) or ARGV[1])
    if due_at and tonumber(due_at) <= now and not (now < other and other <= held) then
        redis.call('HSET', KEYS[4], name, ARGV[3])
        claimed[#claimed + 1] = redis.call('HGET', KEYS[2], name)
    end
end
return claimed
