-- Makes a known key unknown. A Bloom filter cannot: the key becomes an exception, until it is queued again.
-- KEYS[1] state (HASH)
-- ARGV[1] key
-- Returns 1 when it was known. O(layers).
local known = false
if state('filter') == 'exact' then
  known = redis.call('SREM', at('seen'), ARGV[1]) == 1
else
  for n, layer in pairs(stored_layers()) do known = known or in_layer(n, layer, ARGV[1], false) end
  known = known and redis.call('SADD', at('exceptions'), ARGV[1]) == 1
end
if known then
  count('seen', -1)
  count('generation', 1)
end
return known and 1 or 0
