-- Seeds that are taken stay in a "hand" beside the key until their requests are stored, so that a
-- reader that dies has lost none. One call is one step, and repeating it changes nothing.
--
-- KEYS: 1 the users' key, 2 the hands that are full, by their last beat
-- ARGV: 1 this hand, 2 the hand before it when its seeds are stored (or ""),
--       3 how many seeds are wanted (0: only tell that we live; -1: put back what this hand holds),
--       4 seconds after which a hand that did not beat belongs to nobody
-- Returns: how many seeds wait in the key and in hands of others, then the seeds of this hand.

local key, hands, hand, stored = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local wanted, lease = tonumber(ARGV[3]), tonumber(ARGV[4])
local now = tonumber(redis.call('TIME')[1])
local count = {list = 'LLEN', set = 'SCARD', zset = 'ZCARD'}

local function kind_of(name)
  return redis.call('TYPE', name).ok
end

local function inside(name)
  local kind = kind_of(name)
  if kind == 'list' then
    return redis.call('LRANGE', name, 0, -1)
  elseif kind == 'set' then
    return redis.call('SMEMBERS', name)
  elseif kind == 'zset' then
    return redis.call('ZREVRANGE', name, 0, -1)
  end
  return {}
end

local function put_back(name)
  local kind, there = kind_of(name), kind_of(key)
  if there ~= 'none' and kind ~= there and kind ~= 'none' then
    return -- the key holds another kind now: it stays in the hand, which others look at again
  end
  if kind == 'list' then
    for _ = 1, redis.call('LLEN', name) do
      redis.call('RPOPLPUSH', name, key)
    end
  elseif kind == 'set' then
    redis.call('SUNIONSTORE', key, key, name)
  elseif kind == 'zset' then
    for _, seed in ipairs(redis.call('ZRANGE', name, 0, -1)) do
      redis.call('ZADD', key, 'NX', redis.call('ZSCORE', name, seed), seed)
    end
  end
  redis.call('DEL', name)
  redis.call('ZREM', hands, name)
end

local function take(kind, n)
  if kind == 'list' then
    redis.call('RPUSH', hand, unpack(redis.call('LRANGE', key, 0, n - 1)))
    redis.call('LTRIM', key, n, -1)
  elseif kind == 'set' then
    redis.call('SADD', hand, unpack(redis.call('SPOP', key, n)))
  else
    local found = redis.call('ZREVRANGE', key, 0, n - 1, 'WITHSCORES')
    for i = 1, #found, 2 do
      redis.call('ZADD', hand, found[i + 1], found[i])
    end
    redis.call('ZREMRANGEBYRANK', key, -n, -1)
  end
end

if stored ~= '' then
  redis.call('DEL', stored)
  redis.call('ZREM', hands, stored)
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', hands, '-inf', now - lease, 'LIMIT', 0, 10)) do
  if name ~= hand then
    put_back(name)
  end
end
if wanted < 0 then
  put_back(hand)
end
local kind = kind_of(key)
local mine = redis.call('EXISTS', hand)
if kind ~= 'none' and not count[kind] then
  return redis.error_reply('NOSEEDS ' .. kind)
end
if wanted > 0 and mine == 0 and kind ~= 'none' then
  take(kind, wanted)
  mine = 1
end
if mine == 1 then
  redis.call('ZADD', hands, now, hand)
end
local left = redis.call('ZCARD', hands) - mine
kind = kind_of(key)
if kind ~= 'none' then
  left = left + redis.call(count[kind], key)
end
return {left, inside(hand)}
