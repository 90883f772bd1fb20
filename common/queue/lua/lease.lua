#!lua flags=allow-oom
-- Hands out waiting items, each with a token of its own, until a deadline on the server's clock.
-- KEYS  of the run
-- ARGV  3 worker; 4 request id; 5 how many; 6 lease ms; 7, 8 entries and bytes that the results
--       stream may hold: past one of them nothing is handed out
-- Returns  "n:attempt:delivery:deaths", joined by blanks; the i-th item's token is the request id
--          and i - 1 in at least two digits
-- Idempotent  by the request id: the last answer to each worker is kept
local worker, request, want, span = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local kept = recall(worker, 'lease', request)
if kept then return kept end
if (state ~= 'open' and state ~= 'loading') or call('EXISTS', suspended) == 1
  or call('XLEN', stream) >= tonumber(ARGV[7])
  or tonumber(call('HGET', counts, 'stream_bytes') or 0) >= tonumber(ARGV[8]) then
  return ''
end
local history, unwatched = troubled(), to_watch()
local answer, held, due, mirror, mine, time = {}, {}, {}, {}, {}, iso()

local function budget(n, id)
  local ended, died = 0, 0
  if history then
    call('ZREM', scheduled, id)
    call('ZREM', failed, id)
    call('HDEL', expired, n)
    if call('HDEL', dead, n) == 1 then -- `rq requeue` has pushed it: a fresh budget
      call('HDEL', deliveries, n)
      call('HDEL', deaths, n)
      call('HDEL', jobs .. n, 'retries_left')
    end
    ended, died = call('HGET', deliveries, n) or 0, call('HGET', deaths, n) or 0
  end
  local left = tonumber(call('HGET', jobs .. n, 'retries_left') or max_attempts)
  local attempt = max_attempts - left + 1
  return attempt .. ':' .. (attempt + ended) .. ':' .. died
end

local function put(list, a, b)
  list[#list + 1] = a
  list[#list + 1] = b
end

local function hand_out(n, id)
  local token = request .. string.format('%02d', #answer)
  mine[n] = true
  answer[#answer + 1] = n .. ':' .. budget(n, id)
  call('HSET', jobs .. n, 'data', DATA, 'origin', run, 'status', 'started',
    'worker_name', worker, 'started_at', time)
  call('PERSIST', jobs .. n)
  if unwatched > 0 then unwatched = unwatched - call('HSETNX', canary, n, '') end
  put(due, now + span, n)
  put(held, n, token .. ' ' .. worker)
  put(mirror, '+inf', id .. ':' .. token)
end

for _ = 1, 50 do -- rounds: ids that are dropped leave room for others
  local ids = #answer < want and call('LPOP', queue, want - #answer)
  if not ids then break end
  for _, id in ipairs(ids) do
    local n = item_of(id)
    if not n then
      call('RPUSH', foreign, id)
    elseif call('GETBIT', done, n) == 1 then
      if call('SREM', ghosts, n) == 1 then call('UNLINK', jobs .. n) end
    elseif not mine[n] and call('HEXISTS', holder, n) == 0 then
      hand_out(n, id)
    end
  end
end
settle()
if #answer == 0 then return '' end
call('ZADD', lease, unpack(due))
in_force('longest_lease', span)
call('HSET', holder, unpack(held))
call('ZADD', wip, unpack(mirror))
call('HSET', counts, 'last_lease', now)
return remember(worker, 'lease', request, table.concat(answer, ' '))
