-- A worker's one conversation: apply its operations in order, then lease it more work.
-- KEYS[1] state (HASH)
-- ARGV[1] epoch  [2] run  [3] sequence number of this call  [4] leases wanted  [5] operations, msgpack
-- ARGV[6] keys that entered the engine, 16 bytes each  [7] lease, ms  [8] max deliveries  [9] claim start() 0|1
-- ARGV[10] items since the last call  [11] pages, [12] items, [13] ms: the bounds of the crawl, 0 for none
-- Operations: {1, key, payload, priority, filtered, start} push · {2, key} ack · {3, key, reason, detail} fail
--   · {4, key} release · {5, key, payload, reason, detail} bury · {6, failed} start done
-- Returns {'gone'} (another run) | {'lost'} (epoch declared dead) | {'behind'} (the store went back in time: what it
--   had confirmed to this epoch is not here; its leases were returned) | {'ok', queued ('1'/'0' for each push), entries taken,
--   late, waiting, leased, workers, start, paused, hungry, generation, limit}. O(operations + leases taken).
local epoch = ARGV[1]
local now = now_ms()
if number('run') ~= tonumber(ARGV[2]) then return {'gone', redis.call('EXISTS', KEYS[1])} end
if not redis.call('ZSCORE', at('workers'), epoch) then
  return {redis.call('ZSCORE', at('reaped'), epoch) and 'lost' or 'behind'}
end
local last = redis.call('GET', at('reply:' .. epoch))
last = last and cmsgpack.unpack(last)
local applied, this_call = last and last[1] or 0, tonumber(ARGV[3])
if applied ~= this_call and applied ~= this_call - 1 then
  return_leases(epoch, 0, now)
  return {'behind'}
end
redis.call('ZADD', at('workers'), now, epoch)
reap(now, tonumber(ARGV[7]), tonumber(ARGV[8]))

local leases, inside = at('lease:' .. epoch), at('inside:' .. epoch)
local HUNGRY_MS = 2000
local filter = state('filter')
local delta = {done = 0, seen = 0, late = 0, leased = 0}
local queued, taken, taken_keys = {}, {}, {}

local layers

local function add_layer(n)
  -- Layer n holds capacity * 2^n at error / 2^(n+1): the sum over all layers stays under the error rate.
  local capacity = number('capacity') * 2 ^ n
  local rate = tonumber(state('error_rate')) / 2 ^ (n + 1)
  local per_key = -math.log(rate) / math.log(2) ^ 2
  local bits = math.ceil(capacity * per_key)
  local most = 4294967296
  if bits > most then
    bits, capacity = most, math.floor(most / per_key)
  end
  local layer = {bits, math.max(1, math.floor(per_key * math.log(2) + 0.5)), capacity, 0}
  redis.call('SETBIT', at('bloom:' .. (n + 1)), bits - 1, 0)
  layers[n + 1] = layer
  return layer
end

local function load_layers()
  layers = stored_layers()
  if #layers == 0 then add_layer(0) end
end

local exceptions

local function bloom_adds(key)
  if not layers then load_layers() end
  if exceptions == nil then exceptions = redis.call('EXISTS', at('exceptions')) == 1 end
  if exceptions and redis.call('SREM', at('exceptions'), key) == 1 then return true end
  local last = #layers
  for n = 1, last - 1 do
    if in_layer(n, layers[n], key, false) then return false end
  end
  local layer = layers[last]
  if layer[4] >= layer[3] then
    if in_layer(last, layer, key, false) then return false end
    layer, last = add_layer(last), last + 1
  end
  if in_layer(last, layer, key, true) then return false end
  layer[4] = layer[4] + 1
  return true
end

local function first_time(key, filtered, start)
  if start >= 0 then
    if start < number('start_position') then return false end
    set('start_position', start + 1)
    return true
  end
  if not filtered or filter == 'none' then return true end
  local fresh
  if filter == 'exact' then
    fresh = redis.call('SADD', at('seen'), key) == 1
  else
    fresh = bloom_adds(key)
  end
  if fresh then delta.seen = delta.seen + 1 end
  return fresh
end

local function unlease(key)
  local lease = redis.call('HGET', leases, key)
  if not lease then
    delta.late = delta.late + 1
    return nil
  end
  redis.call('HDEL', leases, key)
  redis.call('SREM', inside, key)
  delta.leased = delta.leased - 1
  return string.sub(lease, 9)
end

local function apply(ops)
  local pushed, released, acked = {}, {}, {}
  for _, op in ipairs(ops) do
    local kind = op[1]
    if kind == 1 then
      local fresh = first_time(op[2], op[5], op[6])
      queued[#queued + 1] = fresh and '1' or '0'
      if fresh then add_to(pushed, entry_of(op[2], op[4], 0, op[3])) end
    elseif kind == 2 then
      acked[#acked + 1] = op[2]
    elseif kind == 3 then
      local entry = unlease(op[2])
      if entry then bury(entry, op[3], op[4], name_of(epoch), now) end
    elseif kind == 4 then
      local entry = unlease(op[2])
      if entry then add_to(released, entry) end
    elseif kind == 5 then
      bury(entry_of(op[2], 0, 0, op[3]), op[4], op[5], name_of(epoch), now)
    elseif kind == 6 and state('start') == epoch then
      set('start', op[2] and 'failed' or 'done')
    end
  end
  if enqueue(pushed, false) > 0 and number('finished_at') > 0 then set('finished_at', 0) end
  enqueue(released, true)
  for i = 1, #acked, CHUNK do
    local last = math.min(i + CHUNK - 1, #acked)
    local removed = redis.call('HDEL', leases, unpack(acked, i, last))
    redis.call('SREM', inside, unpack(acked, i, last))
    delta.done, delta.leased = delta.done + removed, delta.leased - removed
    delta.late = delta.late + (last - i + 1 - removed)
  end
  if layers then
    for n, layer in ipairs(layers) do redis.call('HSET', at('layers'), n, cmsgpack.pack(layer)) end
  end
end

-- While another worker has nothing, nobody takes more than an even part.
local function share(want, waiting)
  local hungry = redis.call('ZCOUNT', at('hungry'), now - HUNGRY_MS, '+inf')
  if redis.call('ZSCORE', at('hungry'), epoch) then hungry = hungry - 1 end
  if hungry <= 0 then return want, false end
  local all = waiting + number('leased') + delta.leased
  local even = math.ceil(all / redis.call('ZCARD', at('workers'))) - redis.call('HLEN', leases)
  return math.max(0, math.min(want, even)), true
end

-- What is too short for an entry becomes one whose payload cannot be read: the worker makes it a dead letter.
local function whole(entry, priority)
  if #entry >= HEAD then return entry end
  local key = key_from(redis.sha1hex(now .. ':' .. #taken .. ':' .. entry))
  return entry_of(key, tonumber(priority) or 0, 0, entry)
end

-- The bound that the crawl has reached, and how many more requests may be out.
local function bounds(want)
  local pages, items, ms = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
  local limit = ''
  if pages > 0 then
    local done = number('done')
    want = math.max(0, math.min(want, pages - done - number('leased')))
    if done >= pages then limit = 'pages' end
  end
  if items > 0 and number('items') >= items then limit = 'items' end
  if ms > 0 and now - number('started_at') >= ms then limit = 'seconds' end
  return limit == '' and want or 0, limit
end

local function take(want)
  local pop = state('order') == 'lifo' and 'RPOP' or 'LPOP'
  local stamp = struct.pack('>I8', now)
  while #taken < want do
    local top = redis.call('ZREVRANGE', at('priorities'), 0, 0)[1]
    if not top then break end
    local asked = math.min(want - #taken, CHUNK)
    local entries = redis.call(pop, at('queue:' .. top), asked) or {}
    local pairs_ = {}
    for _, found in ipairs(entries) do
      local entry = whole(found, top)
      taken[#taken + 1] = entry
      taken_keys[#taken_keys + 1] = key_in(entry)
      pairs_[#pairs_ + 1] = key_in(entry)
      pairs_[#pairs_ + 1] = stamp .. entry
    end
    in_chunks('HSET', leases, pairs_)
    if #entries < asked then redis.call('ZREM', at('priorities'), top) end
  end
  count('waiting', -#taken)
  delta.leased = delta.leased + #taken
end

local hungry, limit = false, ''
if applied == this_call then
  -- The answer to this call was lost on its way: give it again, apply nothing.
  queued, delta.late = {last[2]}, last[4]
  for _, key in ipairs(last[3]) do
    local lease = redis.call('HGET', leases, key)
    if lease then taken[#taken + 1] = string.sub(lease, 9) end
  end
else
  if ARGV[9] == '1' and state('start') == '' then set('start', epoch, 'touched', 1) end
  apply(cmsgpack.unpack(ARGV[5]))
  local entered = {}
  for i = 1, #ARGV[6], 16 do
    local key = string.sub(ARGV[6], i, i + 15)
    if redis.call('HEXISTS', leases, key) == 1 then entered[#entered + 1] = key end
  end
  in_chunks('SADD', inside, entered)
  delta.items = tonumber(ARGV[10])
  for name, change in pairs(delta) do
    count(name, change)
    delta[name] = name == 'late' and change or 0
  end
  local want, part = tonumber(ARGV[4])
  want, limit = bounds(want)
  local waiting = number('waiting')
  part, hungry = share(want, waiting)
  if want > 0 and number('paused') == 0 then
    take(part)
    if #taken == 0 and waiting == 0 then
      redis.call('ZADD', at('hungry'), now, epoch)
    elseif #taken > 0 then
      redis.call('ZREM', at('hungry'), epoch)
      set('touched', 1)
    end
  end
  count('leased', delta.leased)
  redis.call('SET', at('reply:' .. epoch),
    cmsgpack.pack({this_call, table.concat(queued), taken_keys, delta.late}))
end
local start = state('start')
if number('waiting') == 0 and number('leased') == 0 and (start == 'done' or start == 'failed') then
  -- If all die before one of them marks the end, the next to join knows when it was.
  set('over_at', now)
end
if start == epoch then
  start = 'mine'
elseif start ~= '' and start ~= 'done' and start ~= 'failed' then
  start = 'theirs'
end
return {
  'ok', table.concat(queued), taken, delta.late, number('waiting'), number('leased'),
  redis.call('ZCARD', at('workers')), start, number('paused'), hungry and 1 or 0, number('generation'),
  limit,
}
