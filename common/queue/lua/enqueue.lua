#!lua
-- Puts the ids of one chunk of items on the queue, each with its lean job hash.
-- KEYS  of the run
-- ARGV  3 number of the chunk
-- Returns  how many ids went on the queue: all but the answered and the dead
-- Idempotent  by the chunk's bit
local chunk = tonumber(ARGV[3])
local first = chunk and chunk * CHUNK or -1
if first < 0 or first >= total then return redis.error_reply('GENQ_BAD no such chunk') end
if over then return redis.error_reply('GENQ_CLOSED ' .. state) end
if call('GETBIT', chunks, chunk) == 1 then return 0 end
local fresh = call('BITCOUNT', done, first / 8, (first + CHUNK) / 8 - 1) == 0
local careful = known[5] or call('ZCARD', failed) > 0 -- some of it may be there already
local ids = {}

-- Tells whether an item without a result was put in before. What a stock worker wrote of one that
-- was cancelled under its hands says nothing.
local function known_already(n)
  local status = call('HGET', jobs .. n, 'status')
  return status and (status ~= 'finished' or call('HEXISTS', holder, n) == 1)
end

-- A copy costs half of what HSET does, on the server and in its append-only file.
call('HSET', scratch, 'data', DATA, 'origin', run, 'status', 'queued')
for n = first, math.min(first + CHUNK, total) - 1 do
  local open = fresh or call('GETBIT', done, n) == 0
  if open and not (careful and known_already(n)) then
    call('COPY', scratch, jobs .. n, 'REPLACE')
    ids[#ids + 1] = id_of(n)
  end
end
call('DEL', scratch)
settle()
if #ids > 0 then call('RPUSH', queue, unpack(ids)) end
call('SADD', queues, queue)
call('SETBIT', chunks, chunk, 1)
call('HINCRBY', counts, 'loaded', #ids)
return #ids
