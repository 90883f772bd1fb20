-- How an item moves: what the scripts share, so that every move is the same everywhere.
-- KEYS, ARGV  see _run.lua

-- Drops the marks of answered items whose ids the queue no longer holds. Before every push.
local function settle()
  if call('LLEN', queue) == 0 and call('LLEN', inter) == 0 then call('DEL', ghosts) end
end

-- Takes the lease away whose holder field is `held` ("token worker").
local function unlease(n, held)
  call('HDEL', holder, n)
  call('ZREM', lease, n)
  call('ZREM', wip, id_of(n) .. ':' .. string.match(held, '^%S+'))
end

-- Returns what stock RQ workers are running: job id -> member of rq:wip.
local function stock_running()
  local found = {}
  for _, member in ipairs(call('ZRANGEBYSCORE', wip, '-inf', '(+inf', 'LIMIT', 0, 200)) do
    found[string.match(member, '^[^:]*')] = member
  end
  return found
end

-- Takes an item out of wherever it is open. Returns true if its id stays in the queue, too deep
-- to be looked for: the item is then a ghost there.
local function withdraw(n)
  local id, held = id_of(n), call('HGET', holder, n)
  if held then return unlease(n, held) end
  if call('ZREM', scheduled, id) == 1 or call('ZREM', failed, id) == 1 then return end
  if call('LPOS', queue, id, 'MAXLEN', CHUNK) then
    call('LREM', queue, 1, id)
  elseif call('LREM', inter, 1, id) == 0 then
    if call('GETBIT', chunks, math.floor(n / CHUNK)) == 0 then
      call('HINCRBY', counts, 'loaded', 1) -- answered before its chunk was loaded
    elseif call('LLEN', queue) > CHUNK and call('HGET', jobs .. n, 'status') == 'queued' then
      return call('SADD', ghosts, n) == 1
    end
  end
end

-- Makes the job hash of an open item as it should be, whatever RQ's tools did to it.
local function lean(n, status)
  call('HSET', jobs .. n, 'data', DATA, 'origin', run, 'status', status)
  call('HDEL', jobs .. n, 'worker_name', 'started_at', 'ended_at')
  call('PERSIST', jobs .. n)
end

-- Marks an item that was withdrawn as answered, for us and for RQ. A ghost's hash stays until
-- `lease` meets its id: RQ's tools delete ids without a hash from the queue.
local function finish(n, ghost, ttl)
  call('SETBIT', done, n, 1)
  for _, key in ipairs({ deliveries, deaths, dead, expired }) do call('HDEL', key, n) end
  call('HSET', jobs .. n, 'data', DATA, 'origin', run, 'status', 'finished', 'ended_at', iso())
  call('ZADD', finished, clock[1] + ttl, id_of(n))
  if not ghost then call('EXPIRE', jobs .. n, ttl) end
  call('EXPIRE', results .. n, ttl)
end

-- Writes RQ's result record of a failure. A fresh stream node has 4 kB of room: the copy has none.
local function note(n, worker, record)
  local key = results .. n
  call('XADD', key, 'MAXLEN', 10, '*', 'type', 2, 'worker_name', worker, 'exc_string', record)
  call('COPY', key, scratch, 'REPLACE')
  call('RENAME', scratch, key)
  call('PERSIST', key)
end

-- Dead-letters an item that was withdrawn. RQ's own entries expire in a year; ours a day sooner,
-- so that those which a stock worker made sort behind all of ours.
local function bury(n, class, worker, record, ttl)
  lean(n, 'failed')
  call('HSET', jobs .. n, 'ended_at', iso(), 'retries_left', 0)
  call('ZADD', failed, clock[1] + ttl - DAY, id_of(n))
  call('HSET', dead, n, class)
  call('HDEL', expired, n)
  note(n, worker, record)
end
