std = "lua54"
read_globals = { "gb" }
max_line_length = 170
files["tests/host"] = { max_line_length = 220, allow_defined_top = true, ignore = { "131" } } -- what hosts call is global
files["tests"] = { max_line_length = 220 }
files["tests/lua/stock_scripts.lua"] = { max_line_length = false } -- they are texts of other programs
-- 581: not (a <= b) is how a NaN is caught; 512: a loop left by break is what a scope is tested with
ignore = { "211/_.*", "212/self", "581", "512" }
