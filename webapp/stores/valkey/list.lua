-- Read a page of one shard's records, from a range of names in their order.
-- KEYS[1] records  records by name
-- KEYS[2] names    `owned`, or `ids`, whose members are kind, id and owner
-- ARGV[1] first    the beginning of the range
-- ARGV[2] last     the end of the range
-- ARGV[3] status   the status of the records, or empty for all
-- ARGV[4] limit    the maximum number of records
-- Returns where the next page begins (empty at the end), followed by the records.
local EXAMINED, BYTES = 1000, 4194304
local limit = tonumber(ARGV[4])
local is_by_id = string.find(KEYS[2], ':ids', 1, true)
local page, bytes = {''}, 0
local members = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, EXAMINED)
for i, member in ipairs(members) do
    local name = member
    if is_by_id then
        local kind, id, owner = string.match(member, '^(%Z*)%z(%Z*)%z(%Z*)$')
        name = owner .. '\0' .. kind .. '\0' .. id
    end
    local stored = redis.call('HGET', KEYS[1], name)
    local _, header = cmsgpack.unpack_one(stored, 4)
    if ARGV[3] == '' or header[8] == ARGV[3] then
        page[#page + 1] = stored
        bytes = bytes + #stored
    end
    if #page > limit or bytes > BYTES or i == EXAMINED then
        page[1] = '(' .. member
        break
    end
end
return page
