-- init.lua - puts the Lua half of the library together: every chunk gets the library's own gb and the native functions
-- that recipes do not see, and adds its part to them. A chunk may use what the chunks before it made.
--
-- Where the build knows which names a chunk makes (late.h), none runs before one of its names is used: then it gets
-- what it takes of others, their chunks first, by taking it. So a chunk adds to no object that another one made; those
-- that do stand in one unit, and run together in this order.

local _, native, run = ...

native.classes = {} -- by the name that the reference gives their objects

-- What few recipes use is read when one of its functions is first called, in every build: the chunk puts them into
-- native.late.
native.late = {}
function native.lazily(chunk, name)
  return function(...)
    if not native.late[name] then native.load(chunk) end
    return native.late[name](...)
  end
end

native.units = {} -- by their first chunk, by whose name each is known
for _, chunk in ipairs { "audit", "doctor", "drawing", "help", "profile", "summary" } do
  native.units[chunk] = { chunk }
end

for _, unit in ipairs {
  { "tools" },
  { "nn/module" }, { "nn/init" }, { "nn/layers" }, { "nn/windows" }, { "nn/vision" }, { "nn/rare" },
  { "nn/recurrent" }, { "nn/transformer" }, { "nn/utils" }, { "nn/weights" },
  { "dist" }, { "nn/sync" }, { "nn/parallel" },
  { "amp" }, { "numerics" }, { "linalg" }, { "functions" }, { "methods" },
  { "optim" }, { "lbfgs" }, { "schedules" }, { "named" }, { "average" },
  { "cuda" },
  { "datasets" }, { "samplers" }, { "data" }, { "lines" }, { "tables" }, { "transforms" },
  { "io" },
  { "args" }, { "progress" }, { "logger" }, { "plot" },
  { "early_stopping" }, { "checkpoints" }, { "metrics" }, { "evaluate" },
  { "trainer", "trainer_average", "trainer_schedule", "trainer_job", "trainer_rescue",
    "trainer_report", "trainer_search", "trainer_options" },
  { "test" }, { "seal" },
} do
  native.units[unit[1]] = unit
  if not native.waits() then
    for _, chunk in ipairs(unit) do run(chunk) end
  end
end
