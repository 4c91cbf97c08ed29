-- Is a key in the Bloom filter?
-- KEYS[1] state (HASH)
-- ARGV[1] key
-- Returns 1 or 0. O(layers).
local flat = redis.call('HGETALL', at('layers'))
for i = 1, #flat, 2 do
  if in_layer(flat[i], cmsgpack.unpack(flat[i + 1]), ARGV[1], false) then return 1 end
end
return 0
