-- test_docs.lua - the examples in README.md and docs/ run and print what they say, and every link leads somewhere.
--
-- A block that opens with ```lua is a script. Each line that it prints stands after a `-->`, on the line of the call or
-- below it, or in the next block if that opens with ```output; a script without either may print what it likes. A
-- script that opens with ```lua and a reason (```lua needs MNIST) is only compiled.

local gb = require "gibbous"
gb.set_default_device("cpu") -- what is printed names the device where it is another
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local function read(path)
  local file = io.open(path, "rb")
  if not file then return nil end
  local text = file:read("a")
  file:close()
  return text
end

-- The fenced blocks of a page: { line =, kind = "lua", reason = "" or why it is not run, text = }.
local function blocks_of(page)
  local blocks, block, number = {}, nil, 0
  for line in (page .. "\n"):gmatch("(.-)\n") do
    number = number + 1
    local kind, reason = line:match("^```(%a*) *(.-)$")
    if kind and not block then
      block = { line = number, kind = kind, reason = reason, text = {} }
    elseif kind then
      block.text = table.concat(block.text, "\n")
      blocks[#blocks + 1], block = block, nil
    elseif block then
      block.text[#block.text + 1] = line
    end
  end
  return blocks
end

-- What a script says that it prints, or "" where it says nothing.
local function promised(script, following)
  if following and following.kind == "output" then return following.text end
  local lines = {}
  for text in script.text:gmatch("%-%-> ?([^\n]*)") do lines[#lines + 1] = text end
  return table.concat(lines, "\n")
end

-- Run a script in globals of its own; what it printed.
local function printed(script)
  local lines = {}
  local function keep(...)
    local words = table.pack(...)
    for i = 1, words.n do words[i] = tostring(words[i]) end
    lines[#lines + 1] = table.concat(words, "\t")
  end
  local shown = print
  local globals = setmetatable({ print = keep, gb = gb }, { __index = _G })
  local chunk = assert(load(script.text, "=train.lua", "t", globals)) -- the name that pages show in messages
  if script.reason ~= "" then return "" end
  _G.print = keep -- the library's own reports
  local ok, why = pcall(chunk)
  _G.print = shown
  if not ok then error(why, 0) end
  return table.concat(lines, "\n")
end

-- The anchor that a heading has on a page of Markdown.
local function anchor(heading)
  return (heading:lower():gsub("[^%w%s_-]", ""):gsub(" ", "-"))
end

-- Does a page have a heading with this anchor?
local function has_anchor(page, wanted)
  for heading in ("\n" .. page):gmatch("\n#+ ([^\n]+)") do
    if anchor(heading) == wanted then return true end
  end
  return false
end

local pages = { "README.md" }
local names = { "architecture", "contributing", "cuda", "data", "distributed", "embedding", "numbers", "performance",
  "precision", "sandbox", "tensors", "training", "watching" }
for _, name in ipairs(names) do
  pages[#pages + 1] = "docs/" .. name .. ".md"
end

for _, path in ipairs(pages) do
  describe(path, function()
    local page = assert(read(path), path .. " is not there")
    local folder = path:match("^(.*/)") or ""
    local blocks = blocks_of(page)
    for i, block in ipairs(blocks) do
      if block.kind == "lua" then
        it("has an example that holds at line " .. block.line, function()
          gb.manual_seed(1)
          local said, did = promised(block, blocks[i + 1]), printed(block)
          if said ~= "" and block.reason == "" then expect(did):to_be(said) end
        end)
      end
    end
    for target in page:gmatch("%]%(([^)]+)%)") do
      if not target:match("^%a+:") then
        it("links to " .. target .. ", which is there", function()
          local file, place = target:match("^([^#]*)#?(.*)$")
          local other = file == "" and page or read(folder .. file) or read(folder .. file .. "/README.md")
          expect(other ~= nil):to_be(true)
          if place ~= "" then expect(has_anchor(other, place)):to_be(true) end
        end)
      end
    end
  end)
end

describe("README.md", function()
  local page = read("README.md")
  -- How many there are of what a pattern's number counts.
  local function says(pattern, count) expect(tonumber(page:match(pattern))):to_be(count) end
  it("counts the ops that a recipe can call", function()
    local seen, count = {}, 0
    for _, row in ipairs(gb.test.public_names()) do
      if row.op and not seen[row.op.name] then seen[row.op.name], count = true, count + 1 end
    end
    says("| ops | (%d+) that a recipe can call", count)
  end)
  it("counts the schedules and names the optimizers", function()
    local schedules, optimizers = 0, page:match("| `gb.optim` | ([^;]*); %d+ schedules")
    for name in pairs(gb.optim.lr) do
      if name:find("^%u") then schedules = schedules + 1 end
    end
    says("; (%d+) schedules", schedules)
    for name in pairs(gb.optim) do
      local is_other = ({ Average = true, EMA = true, Sharded = true })[name] or not name:find("^%u")
      if not is_other then assert((", " .. optimizers .. ","):find(" " .. name .. ",", 1, true), name) end
    end
  end)
end)

gb.test.finish()
