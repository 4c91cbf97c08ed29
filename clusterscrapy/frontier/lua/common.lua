-- Prefixed to every script of this folder: the data model, and the steps scripts share.
--
-- KEYS[1] is always {crawl}:state; every other key is built from it and shares its hash tag:
--   state          HASH    run, scheme, scheme_words, filter, order, error_rate, start ('' | 'done' |
--                          'failed' | epoch), start_position, touched (a request was taken or start() begun), paused, dropped, forgotten, counters (waiting,
--                          leased, done, dead, seen, late, items), generation (of the memory of seen keys), started_at,
--                          over_at, finished_at, keep, alive_at, reap_at, reaped_at;
--                          times in ms by the server's clock
--   priorities     ZSET    priorities that may have a queue; member = priority, score = priority
--   queue:<prio>   LIST    entries of one priority; pushed right, taken left (right when order = lifo)
--   workers        ZSET    epoch -> time of its last heartbeat, ms
--   reaped         ZSET    epochs declared dead -> when, ms; a day long
--   hungry         ZSET    epoch -> when it last asked for work and there was none, ms
--   infos          HASH    epoch -> msgpack {name, joined_at}
--   lease:<epoch>  HASH    key -> lease time (8 bytes, ms, big-endian) .. entry
--   inside:<epoch> SET     keys that went from the worker's buffer into its engine
--   reply:<epoch>  STRING  msgpack {seq, queued, keys taken, late} of the last sync: a retry gets the same answer
--   seen           SET     keys, when filter = exact
--   layers         HASH    number -> msgpack {bits, hashes, capacity, count}, when filter = bloom
--   exceptions     SET     keys in the Bloom filter that count as unknown, until they are queued again
--   bloom:<number> STRING  the bits of that layer
--   dead           HASH    key .. run (4 bytes) -> msgpack {reason, detail, died_at, deaths, run, worker, entry,
--                          first_at, first_reason, failures}
--   failed_before  HASH    the fields of replayed letters -> msgpack {first_at, first_reason, failures}
--   dead_order     ZSET    the fields of dead by time
--
-- An entry is: version (1 byte, 1), deaths (1 byte), priority (8 bytes, signed, big-endian), key (16 bytes), payload.
local base = string.sub(KEYS[1], 1, -6)
local HEAD = 26
local CHUNK = 500

local function at(part)
  return base .. part
end

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function state(name)
  return redis.call('HGET', KEYS[1], name) or ''
end

local function number(name)
  -- An error is better than a crawl that goes on with a nil.
  return tonumber(redis.call('HGET', KEYS[1], name) or 0) or error('the state has no number as ' .. name)
end

local function set(...)
  redis.call('HSET', KEYS[1], ...)
end

local function count(name, delta)
  if delta ~= 0 then redis.call('HINCRBY', KEYS[1], name, delta) end
end

-- Calls a variadic command in bounded pieces (Lua's stack is).
local function in_chunks(command, name, values, reply)
  for i = 1, #values, CHUNK do
    reply = redis.call(command, name, unpack(values, i, math.min(i + CHUNK - 1, #values)))
  end
  return reply
end

local function entry_of(key, priority, deaths, payload)
  return struct.pack('>BBi8', 1, deaths, priority) .. key .. payload
end

local function priority_in(entry)
  return (struct.unpack('>i8', entry, 3))
end

local function key_in(entry)
  return string.sub(entry, 11, HEAD)
end

local function with_deaths(entry, deaths)
  return string.sub(entry, 1, 1) .. string.char(math.min(deaths, 255)) .. string.sub(entry, 3)
end

-- Queues entries {priority -> list}; `front` puts them where they are taken next.
local function enqueue(by_priority, front)
  local push = 'RPUSH'
  if front and state('order') ~= 'lifo' then push = 'LPUSH' end
  local n = 0
  for priority, entries in pairs(by_priority) do
    local name = string.format('%.0f', priority)
    redis.call('ZADD', at('priorities'), priority, name)
    in_chunks(push, at('queue:' .. name), entries)
    n = n + #entries
  end
  count('waiting', n)
  return n
end

local function add_to(by_priority, entry)
  local priority = priority_in(entry)
  local entries = by_priority[priority]
  if not entries then
    entries = {}
    by_priority[priority] = entries
  end
  entries[#entries + 1] = entry
end

local function bury(entry, reason, detail, worker, now)
  local run = number('run')
  local field = key_in(entry) .. struct.pack('>I4', run)
  local first_at, first_reason, failures = now, reason, 1
  local before, letter = redis.call('HGET', at('failed_before'), field), redis.call('HGET', at('dead'), field)
  if before or letter then
    local history = before and cmsgpack.unpack(before) or {unpack(cmsgpack.unpack(letter), 8)}
    first_at, first_reason, failures = history[1], history[2], history[3] + 1
    redis.call('HDEL', at('failed_before'), field)
  end
  redis.call('HSET', at('dead'), field, cmsgpack.pack({
    reason, detail, now, string.byte(entry, 2), run, worker, entry, first_at, first_reason, failures,
  }))
  redis.call('ZADD', at('dead_order'), now, field)
  if not letter then count('dead', 1) end
end

local function name_of(epoch)
  local info = redis.call('HGET', at('infos'), epoch)
  -- What cannot be read is no reason to keep the leases.
  local read, fields = pcall(cmsgpack.unpack, info or '')
  local name = read and type(fields) == 'table' and fields[1]
  return type(name) == 'string' and name or epoch
end

-- Puts an epoch's leases back. max_deaths > 0: its worker died, so deaths are counted for what was
-- inside (for all when nothing is known to be: a page that kills at once leaves no time to say so).
local function return_leases(epoch, max_deaths, now)
  local leases = redis.call('HGETALL', at('lease:' .. epoch))
  local inside, any = {}, false
  if max_deaths > 0 then
    for _, key in ipairs(redis.call('SMEMBERS', at('inside:' .. epoch))) do
      inside[key], any = true, true
    end
  end
  local back, worker = {}, name_of(epoch)
  for i = 1, #leases, 2 do
    local entry = string.sub(leases[i + 1], 9)
    local deaths = string.byte(entry, 2)
    if max_deaths > 0 and (inside[leases[i]] or not any) then
      deaths = deaths + 1
      entry = with_deaths(entry, deaths)
    end
    if max_deaths > 0 and deaths >= max_deaths then
      bury(entry, 'poison', deaths .. ' workers died while it was fetched or parsed', worker, now)
    else
      add_to(back, entry)
    end
  end
  count('leased', -#leases / 2)
  local returned = enqueue(back, true)
  redis.call('DEL', at('lease:' .. epoch), at('inside:' .. epoch), at('reply:' .. epoch))
  redis.call('ZREM', at('workers'), epoch)
  redis.call('ZREM', at('hungry'), epoch)
  redis.call('HDEL', at('infos'), epoch)
  if state('start') == epoch then set('start', '') end
  return returned
end

-- Declares workers dead that were silent for a lease time. After a silence of everybody (an outage of
-- the store or the network) nobody is dead before one more lease time has passed.
local function reap(now, lease_ms, max_deaths)
  local alive_at = number('alive_at')
  if alive_at > 0 and now - alive_at > lease_ms then set('reap_at', now + lease_ms) end
  set('alive_at', now)
  if now < number('reap_at') or now - number('reaped_at') < math.min(1000, lease_ms / 4) then return end
  set('reaped_at', now)
  for _, epoch in ipairs(redis.call('ZRANGEBYSCORE', at('workers'), '-inf', now - lease_ms)) do
    return_leases(epoch, max_deaths, now)
    redis.call('ZADD', at('reaped'), now, epoch)
    redis.call('ZREMRANGEBYSCORE', at('reaped'), '-inf', now - 86400000)
  end
end

local function forget_seen()
  for _, n in ipairs(redis.call('HKEYS', at('layers'))) do redis.call('UNLINK', at('bloom:' .. n)) end
  redis.call('UNLINK', at('seen'), at('layers'), at('exceptions'))
end

local function empty()
  for _, priority in ipairs(redis.call('ZRANGE', at('priorities'), 0, -1)) do
    redis.call('UNLINK', at('queue:' .. priority))
  end
  for _, epoch in ipairs(redis.call('ZRANGE', at('workers'), 0, -1)) do
    redis.call('UNLINK', at('lease:' .. epoch), at('inside:' .. epoch), at('reply:' .. epoch))
  end
  forget_seen()
  redis.call('UNLINK', KEYS[1], at('priorities'), at('workers'), at('reaped'), at('hungry'), at('infos'))
end

-- Takes a dead letter away; returns it, packed.
local function exhume(field)
  local letter = redis.call('HGET', at('dead'), field)
  if not letter then return nil end
  redis.call('HDEL', at('dead'), field)
  redis.call('ZREM', at('dead_order'), field)
  if struct.unpack('>I4', field, 17) == number('run') then count('dead', -1) end
  return letter
end

-- A key of our own making, from a text in hex.
local function key_from(hex)
  local key = {}
  for i = 1, 32, 2 do key[#key + 1] = string.char(tonumber(string.sub(hex, i, i + 1), 16)) end
  return table.concat(key)
end

-- Is the key in this layer of the Bloom filter (and put it there)? Positions are h1 + i*h2 + i^3 modulo the
-- layer's bits (enhanced double hashing: Dillinger & Manolios 2004); h1 and h2 are 47 bits each of the key, so
-- that every sum is exact in a double.
local function in_layer(n, layer, key, add)
  local w0, w1, w2, w3 = struct.unpack('>I4I4I4I4', key)
  local h1, h2 = w0 * 32768 + math.floor(w1 / 131072), w2 * 32768 + math.floor(w3 / 131072)
  local args = {}
  for i = 0, layer[2] - 1 do
    local position = string.format('%.0f', (h1 + i * h2 + i * i * i) % layer[1])
    if add then
      args[#args + 1] = 'SET'; args[#args + 1] = 'u1'; args[#args + 1] = position; args[#args + 1] = 1
    else
      args[#args + 1] = 'GET'; args[#args + 1] = 'u1'; args[#args + 1] = position
    end
  end
  for _, bit in ipairs(redis.call('BITFIELD', at('bloom:' .. n), unpack(args))) do
    if bit == 0 then return false end
  end
  return true
end

local function stored_layers()
  local layers, flat = {}, redis.call('HGETALL', at('layers'))
  for i = 1, #flat, 2 do
    local layer = cmsgpack.unpack(flat[i + 1])
    -- Numbers that are not ours would keep the server busy in a loop without end.
    if layer[1] < 1 or layer[1] > 4294967296 or layer[2] > 1000 then error('layers holds no layer of a filter') end
    layers[tonumber(flat[i])] = layer
  end
  return layers
end
