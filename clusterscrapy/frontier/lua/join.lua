-- A worker joins: begins a run, resumes it, or finds it finished.
-- KEYS[1] state (HASH)
-- ARGV[1] epoch  [2] worker name  [3] resume 0|1  [4] explicit id 0|1  [5] hold, ms  [6] lease, ms
-- ARGV[7] max deliveries  [8] scheme digest  [9] scheme words  [10] filter  [11] capacity  [12] error rate  [13] order
-- Returns {status, run, waiting, leased, done, dead, workers, finished ms ago, touched, stored filter, stored order,
--   stored scheme words}
-- with status fresh | resumed | late | scheme. O(entries of dead workers).
local now = now_ms()
local lease_ms, max_deaths = tonumber(ARGV[6]), tonumber(ARGV[7])

local function answer(status, ago)
  return {
    status, number('run'), number('waiting'), number('leased'), number('done'), number('dead'),
    redis.call('ZCARD', at('workers')), ago or 0, number('touched'),
    state('filter'), state('order'), state('scheme_words'),
  }
end

local function enter(status)
  redis.call('ZADD', at('workers'), now, ARGV[1])
  redis.call('HSET', at('infos'), ARGV[1], cmsgpack.pack({ARGV[2], now}))
  return answer(status)
end

local function begin()
  local run = number('run') + 1
  empty()
  set('run', run, 'scheme', ARGV[8], 'scheme_words', ARGV[9], 'filter', ARGV[10], 'capacity', ARGV[11],
    'error_rate', ARGV[12], 'order', ARGV[13], 'lease_ms', lease_ms, 'started_at', now, 'alive_at', now)
  return enter('fresh')
end

if number('run') == 0 or number('dropped') == 1 then return begin() end
reap(now, lease_ms, max_deaths)
local alone = redis.call('ZCARD', at('workers')) == 0
if alone then
  -- A crawl that ended unmarked is finished, a start() that raised is due again.
  if state('start') == 'failed' then set('start', '') end
  if state('start') == 'done' and number('waiting') == 0 and number('finished_at') == 0 then
    local over_at = number('over_at')
    set('finished_at', over_at > 0 and over_at or now - tonumber(ARGV[5]))
  end
end
local finished = number('finished_at')
if finished > 0 then
  local ago = now - finished
  if ARGV[3] == '1' and (ARGV[4] == '1' or ago < tonumber(ARGV[5])) then return answer('late', ago) end
  return begin()
end
if alone and ARGV[3] == '0' then return begin() end
if state('scheme') ~= ARGV[8] then return answer('scheme') end
return enter('resumed')
