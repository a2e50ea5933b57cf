-- Claim due records of one shard, except those that were written or claimed in the meantime.
-- KEYS[1] fence    why writes are refused, if they are
-- KEYS[2] records  records by name
-- KEYS[3] due      names by due_at
-- KEYS[4] claims   when the claim of a due record ends, by name
-- ARGV[1] now      the time in microseconds
-- ARGV[2] held     claims that end later than this are ignored (in microseconds)
-- ARGV[3] until    when the new claims end, in microseconds
-- ARGV[4...] names of the due records
-- Returns the records that are now claimed, or the reason why writes are refused.
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
