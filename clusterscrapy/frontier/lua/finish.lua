-- Marks a crawl finished if it is over.
-- KEYS[1] state (HASH)
-- ARGV[1] run  [2] keep everything 0|1
-- Returns 1 when the crawl is finished. Dead letters stay, and with them the memory of what was seen
-- (a replayed page needs it); else the last worker to leave drops that memory.
if number('run') ~= tonumber(ARGV[1]) then return 0 end
if number('finished_at') > 0 then return 1 end
if number('waiting') > 0 or number('leased') > 0 or state('start') ~= 'done' then return 0 end
set('finished_at', now_ms())
set('keep', ARGV[2] == '1' and 1 or 0)
return 1
