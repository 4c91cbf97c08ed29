-- Queues dead letters again and opens a finished crawl.
-- KEYS[1] state (HASH)
-- ARGV[1] fields of dead, 20 bytes each
-- Returns how many were queued; a note of what could not be stored (payload empty or version 0) stays. O(fields).
local back, n, run = {}, 0, number('run')

-- A letter of a former run gets another key, as in protocol.old_key: the same page may be queued in this one.
local function renamed(entry, field)
  return string.sub(entry, 1, 10) .. key_from(redis.sha1hex(field)) .. string.sub(entry, HEAD + 1)
end

local function is_request(field)
  local letter = redis.call('HGET', at('dead'), field)
  if not letter then return false end
  local read, fields = pcall(cmsgpack.unpack, letter)
  local entry = read and type(fields) == 'table' and fields[7]
  return type(entry) == 'string' and #entry > HEAD and string.byte(entry, HEAD + 1) ~= 0
end

for i = 1, #ARGV[1], 20 do
  local field = string.sub(ARGV[1], i, i + 19)
  if is_request(field) then
    local letter = cmsgpack.unpack(exhume(field))
    local entry = letter[7]
    if struct.unpack('>I4', field, 17) ~= run then entry = renamed(entry, field) end
    add_to(back, with_deaths(entry, 0))
    redis.call('HSET', at('failed_before'), key_in(entry) .. struct.pack('>I4', run),
      cmsgpack.pack({letter[8], letter[9], letter[10]}))
    n = n + 1
  end
end
if n > 0 then
  enqueue(back, false)
  set('finished_at', 0)
end
return n
