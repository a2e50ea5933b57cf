-- Let nobody write in this shard, or end that.
-- KEYS[1] fence    why nobody may write
-- ARGV[1] why      the words of the new fence; empty: none from now on
-- ARGV[2...] instead  the fences in whose place it may be put, empty: none; without any: whichever
-- Returns 1, or nothing if another one stands.
local found = redis.call('GET', KEYS[1]) or ''
local may = #ARGV == 1
for i = 2, #ARGV do
    may = may or ARGV[i] == found
end
if not may then return {} end
if ARGV[1] == '' then
    redis.call('DEL', KEYS[1])
else
    redis.call('SET', KEYS[1], ARGV[1])
end
return 1
