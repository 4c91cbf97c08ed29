-- Forgets dead letters.
-- KEYS[1] state (HASH)
-- ARGV[1] fields of dead, 20 bytes each
-- Returns how many were there. O(fields).
local n = 0
for i = 1, #ARGV[1], 20 do
  if exhume(string.sub(ARGV[1], i, i + 19)) then n = n + 1 end
end
return n
