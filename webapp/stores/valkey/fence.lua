-- Set the fence of this shard, which refuses writes, or remove it.
-- KEYS[1] fence    why writes are refused, if they are
-- ARGV[1] why      the reason, which is the new fence, or empty to remove the fence
-- ARGV[2...] instead  the fences to replace, empty for no fence; without any, replace every fence
-- Returns 1, or an empty list if the current fence may not be replaced.
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
