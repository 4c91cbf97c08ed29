-- Forgets a crawl; the bumped run tells a worker still inside that its crawl is gone.
-- KEYS[1] state (HASH)
-- ARGV[1] lease, ms  [2] force 0|1
-- Returns the names of live workers when there are some and force is 0, else nothing.
local alive = {}
for _, epoch in ipairs(redis.call('ZRANGEBYSCORE', at('workers'), now_ms() - tonumber(ARGV[1]), '+inf')) do
  alive[#alive + 1] = name_of(epoch)
end
if #alive > 0 and ARGV[2] == '0' then return alive end
local run = number('run')
empty()
redis.call('UNLINK', at('dead'), at('dead_order'), at('failed_before'))
set('run', run + 1, 'dropped', 1)
-- Long enough for every worker to notice, a frozen one too.
redis.call('EXPIRE', KEYS[1], 86400)
return {}
