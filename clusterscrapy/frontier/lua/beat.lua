-- A worker's heartbeat.
-- KEYS[1] state (HASH)
-- ARGV[1] epoch  [2] lease, ms  [3] max deliveries
-- Returns 1, or 0 when the epoch was declared dead. O(1), plus the leases of workers found dead.
local now = now_ms()
if not redis.call('ZSCORE', at('workers'), ARGV[1]) then return 0 end
redis.call('ZADD', at('workers'), now, ARGV[1])
reap(now, tonumber(ARGV[2]), tonumber(ARGV[3]))
return 1
