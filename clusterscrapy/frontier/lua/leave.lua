-- A worker leaves and hands its leases back; its deaths are not counted.
-- KEYS[1] state (HASH)
-- ARGV[1] epoch  [2] run
-- Returns how many leases went back. O(leases).
if number('run') ~= tonumber(ARGV[2]) then return 0 end
if not redis.call('ZSCORE', at('workers'), ARGV[1]) then return 0 end
local returned = return_leases(ARGV[1], 0, now_ms())
if number('finished_at') > 0 and number('keep') == 0 and redis.call('ZCARD', at('workers')) == 0
  and number('dead') == 0 then
  forget_seen()
  set('forgotten', 1)
end
return returned
