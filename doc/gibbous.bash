# gibbous.bash - completion of gibbous for bash.

_gibbous() {
  local word=$2 before=$3
  COMPREPLY=()
  case $before in
    --device) mapfile -t COMPREPLY < <(compgen -W "cpu cuda cuda:0 cuda:1" -- "$word"); return ;;
    --threads | --memory | --time | -e | -l) return ;;
  esac
  case $word in
    -*) mapfile -t COMPREPLY < <(compgen -W "-e -i -l -v -E -W -- - --device --threads --sandbox --memory --time --doctor --json --recipes --help --version" -- "$word") ;;
    *) mapfile -t COMPREPLY < <(compgen -f -X '!*.lua' -- "$word"; compgen -d -S / -- "$word") ;;
  esac
}
complete -o filenames -o default -F _gibbous gibbous
