#!lua flags=allow-oom
-- Marks items as committed in a run of which nothing was loaded yet.
-- KEYS  of the run
-- ARGV  3 bitmap: bit k is item k, the most significant bit of a byte first
-- Returns  how many items were not committed before, and are now; or -1: something is loaded, so
--          that `commit` has to do it
-- Idempotent  by the bits
if #ARGV[3] > math.ceil(total / 8) then return redis.error_reply('GENQ_BAD no such item') end
if over then return redis.error_reply('GENQ_CLOSED ' .. state) end
local held = call('BITCOUNT', committed)
local loaded = tonumber(call('HGET', counts, 'loaded') or 0)
-- After a cancel, dead letters and results in the stream stay loaded.
if call('BITCOUNT', chunks) > 0 or call('BITCOUNT', done) ~= held or loaded ~= held then
  return -1
end
call('SET', scratch, ARGV[3])
call('BITOP', 'OR', committed, committed, scratch)
call('DEL', scratch)
call('SET', done, call('GET', committed) or '')
local bits = call('BITCOUNT', committed)
call('HSET', counts, 'loaded', bits, 'committed', bits)
if bits > held then call('HSET', counts, 'unseen', 1) end -- their verdicts: see `recount`
if watching then watch_anew() end
return bits - held
