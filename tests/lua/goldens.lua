-- goldens.lua - reads golden files, which tests/golden/lines.py writes. Loaded by the tests with dofile.

local gb = require "gibbous"

local goldens = {}

-- The families of the table of ops, in order.
local function families_of_ops()
  local list, seen = {}, {}
  for _, row in ipairs(gb.test.ops()) do
    if not seen[row.family] then list[#list + 1] = row.family end
    seen[row.family] = true
  end
  return list
end

-- The lines of tests/golden/<kind>/<family>.jsonl, in order; each knows its family. families: by default those of the
-- ops, where there is a file.
function goldens.read(kind, families)
  local lines, names = {}, {}
  for _, family in ipairs(families or families_of_ops()) do
    local path = ("tests/golden/%s/%s.jsonl"):format(kind, family)
    local file, why = io.open(path)
    if not file and families then error(why) end
    for text in file and file:lines() or function() end do
      local line = gb.io.json_decode(text)
      if names[line.name] then error(("%s: there is another line '%s'"):format(path, line.name)) end
      names[line.name], line.family = true, family
      lines[#lines + 1] = line
    end
    if file then file:close() end
  end
  if #lines == 0 then error("there is nothing in tests/golden/" .. kind) end
  return lines
end

local named = { inf = math.huge, ["-inf"] = -math.huge, nan = 0 / 0 }

-- The elements of a tensor's text and its shape and dtype. base: the elements that "." stands for.
function goldens.elements(text, base)
  local dtype, sizes, rest = text:match("^(%w+)%[([%d,]*)%](.*)$")
  local list, shape = {}, {}
  for size in sizes:gmatch("%d+") do shape[#shape + 1] = math.tointeger(tonumber(size)) end
  for word, times in rest:gmatch("([^%s*]+)%*?(%d*)") do
    for _ = 1, times == "" and 1 or tonumber(times) do
      list[#list + 1] = word == "." and base[#list + 1] or named[word] or tonumber(word)
    end
  end
  return list, shape, dtype
end

-- The tensor of a text, in host memory.
function goldens.tensor(text, base)
  local list, shape, dtype = goldens.elements(text, base)
  return gb.tensor(list, { dtype = dtype, device = "cpu" }):reshape(shape)
end

-- Is a line of made.jsonl one of products, which autocast runs in 16 bits?
function goldens.multiplies(line)
  return line.name:find "^Adaptive" or line.name:find "^Linear" or line.name:find "^linear" or
    line.name:find "^attention"
end

return goldens
