# bash completion of fwtop(8)
# shellcheck shell=bash

_fwtop() {
  local verbs="watch snapshot read record block limit match drop notrack synproxy sysctl apply status keep undo why sessions report replay doctor lab bench"
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} verb="" word
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ " $verbs " == *" $word "* ]] && verb=$word && break
  done
  COMPREPLY=()
  case $previous in
    -i) mapfile -t COMPREPLY < <(compgen -W "$(command ls /sys/class/net)" -- "$current") && return ;;
    --netns) mapfile -t COMPREPLY < <(compgen -W "$(command ls /run/netns 2>/dev/null)" -- "$current") && return ;;
    --format) mapfile -t COMPREPLY < <(compgen -W "html md json" -- "$current") && return ;;
    --via) mapfile -t COMPREPLY < <(compgen -W "ipset xdp" -- "$current") && return ;;
    --ttl) mapfile -t COMPREPLY < <(compgen -W "30s 10m 2h 1d" -- "$current") && return ;;
    -o | --geoip) mapfile -t COMPREPLY < <(compgen -f -- "$current") && return ;;
  esac
  local options="--help"
  case $verb in
    "" | watch) options+=" -i --netns --xdp --slow" ;;
    snapshot) options+=" -i --netns --seconds --json --top" ;;
    read) mapfile -t COMPREPLY < <(compgen -f -W "$options --json" -- "$current") && return ;;
    record) options+=" -i" ;;
    block) options+=" --via --ttl --preview --yes --netns" ;;
    limit) options+=" --proto --dport --per --rate --ttl --preview --yes --netns -4 -6" ;;
    match) options+=" --string --hex --mask --dns --type --offset --proto --dport --ttl --preview --yes --netns -4 -6" ;;
    drop) options+=" --proto --sport --dport --length --ttl-field --tcp-flags --icmp-type --fragment --via --ttl --preview --yes --netns -4 -6" ;;
    notrack) options+=" --proto --dport --ttl --preview --yes --netns -4 -6" ;;
    synproxy) options+=" --dport --to --ttl --preview --yes --netns -4 -6" ;;
    sysctl) options+=" --ttl --preview --yes --netns --json" ;;
    why) options+=" --netns --json" ;;
    status) options+=" --netns --json" ;;
    undo) options+=" --all --netns" ;;
    keep) options+=" --netns" ;;
    report) options+=" --format -o" ;;
    doctor) options+=" -i --json" ;;
    lab) options+=" list --seconds --pps --json" ;;
    bench) options+=" list --json" ;;
  esac
  [[ $verb ]] || options+=" $verbs"
  mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
}
complete -F _fwtop fwtop
