-- late_names.lua - at build time, finds out which names each chunk of the Lua half makes, by looking at the modules of
-- the library and at the native functions after each, and writes them as the table of late.h. Run by late_names.c, in
-- which nothing is late.
--
-- It fails where a chunk does what it could not do late: makes no name at all, sets a name anew that another made, or
-- adds to a class that an earlier unit made.

local output = ...
local seen, rows, order, classes = {}, {}, {}, {}
local own_native, is_module

local function sorted(list, less)
  table.sort(list, less)
  return list
end

-- The tables that chunks set names in, by path.
local function targets()
  local all = own_native.modules()
  all.native, all.tensor = own_native, own_native.methods("gibbous.tensor")
  return all
end

-- Classes: tables with functions, in modules or among the native classes; a unit that adds to one of another is wrong.
local function note_classes(unit, found)
  for path, list in pairs { ["gb.nn"] = found["gb.nn"], classes = own_native.classes } do
    for name, class in pairs(list) do
      if type(class) == "table" and not is_module[class] then
        local known = classes[class] or { unit = unit, path = path .. "." .. tostring(name), keys = {} }
        for key in next, class do
          if not known.keys[key] and known.unit ~= unit then
            error(("the unit %s adds '%s' to %s, which %s made: let them be one"):format(unit, tostring(key),
              known.path, known.unit))
          end
          known.keys[key] = true
        end
        classes[class] = known
      end
    end
  end
end

local unit_of = {} -- by chunk

-- What stands there before a chunk runs is not its own.
local function look()
  for path, module in pairs(targets()) do
    for name, value in next, module do
      local key = path .. "." .. tostring(name)
      if seen[key] == nil then seen[key] = value end
    end
  end
end

-- Called before and after each chunk. init runs the others.
local function observe(chunk, native, has_run)
  own_native = native
  if not has_run then return look() end
  if chunk == "init" then return end
  for first, list in pairs(native.units) do
    for _, name in ipairs(list) do unit_of[name] = first end
  end
  local found, made = targets(), 0
  is_module = {}
  for _, module in pairs(found) do is_module[module] = true end
  for path, module in pairs(found) do
    for name, value in next, module do
      local key = path .. "." .. tostring(name)
      if seen[key] == nil then
        made = made + 1
        rows[#rows + 1] = { path = path, name = name, unit = unit_of[chunk] }
      elseif seen[key] ~= value and not is_module[value] then
        error(("the chunk %s sets %s anew"):format(chunk, key))
      end
      seen[key] = value
    end
  end
  note_classes(unit_of[chunk], found)
  order[unit_of[chunk]] = (order[unit_of[chunk]] or 0) + made
end

local function write()
  local levels, list = {}, own_native.records()
  for i = 1, #list, 2 do levels[list[i]:match("^[%w_.:]+")] = list[i + 1] end
  for unit, made in pairs(order) do
    if made == 0 then error(("the unit %s makes no name that could be used"):format(unit)) end
  end
  local lines = { "/* Made by cmake/late_names.lua. */", '#include "embedded.h"', "",
    "const gbl_late_row gbl_late_rows[] = {" }
  for _, row in ipairs(sorted(rows, function(a, b)
    if a.path ~= b.path then return a.path < b.path end
    return a.name < b.name
  end)) do
    local level = levels[row.path .. "." .. row.name]
    if row.path:find("^gb") and not level then
      error(("%s.%s, of %s, has no record; a table of names is a module, and stands in bindings/late.c"):format(
        row.path, row.name, row.unit))
    end
    lines[#lines + 1] = ('  { "%s", "%s", "%s", %d },'):format(row.path, row.name, row.unit, level or -1)
  end
  lines[#lines + 1] = ("};\nconst int gbl_late_count = %d;\n"):format(#rows)
  local file = assert(io.open(output, "w"))
  assert(file:write(table.concat(lines, "\n")))
  assert(file:close())
end

return observe, write
