-- Is a key in the Bloom filter?
-- KEYS[1] state (HASH)
-- ARGV[1] key
-- Returns 1 or 0. O(layers).
if redis.call('SISMEMBER', at('exceptions'), ARGV[1]) == 1 then return 0 end
for n, layer in pairs(stored_layers()) do
  if in_layer(n, layer, ARGV[1], false) then return 1 end
end
return 0
