-- leave.lua - what was begun, and groups, once the job is left.

local gb = require "gibbous"
local dist = gb.dist
local it, expect = gb.test.it, gb.test.expect
if not dist.is_initialized() then dist.init { timeout = 60 } end
local rank, size = dist.rank(), dist.world_size()

it("ends what was begun where the job is left", function()
  local sum, never = gb.full({ 1000 }, rank), nil
  local group = dist.new_group { 0 }
  local handle = dist.all_reduce(sum, "sum", { async = true })
  dist.all_gather(sum, { async = true }) -- nobody waits for it
  if size > 1 then never = dist.recv(gb.zeros(1), (rank + 1) % size, { async = true }) end
  dist.finalize()
  expect(handle:wait()[1]:item()):to_be(size * (size - 1) // 2)
  if never then
    expect(never:is_completed()):to_be(true)
    expect(function() never:wait() end):to_fail("the job was left")
    expect(function() never:wait() end):to_fail("the job was left")
  end
  expect(function() dist.rank(group) end):to_fail("was left")
  expect(function() dist.all_reduce(sum, "sum", { group = group }) end):to_fail("was left")
  expect(function() dist.new_group { 0 } end):to_fail("gb.dist.init")
end)

gb.test.finish()
