# bash completion of fwtop(8)
# shellcheck shell=bash

_fwtop() {
  local verbs="watch snapshot read record service alarms block list protect limit match drop notrack synproxy sysctl harden apply status keep repair undo why rules events policy sessions report replay trends config doctor lab bench"
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} verb="" word
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ " $verbs " == *" $word "* ]] && verb=$word && break
  done
  COMPREPLY=()
  local -A places=([block]="ipset xdp tc nftables" [limit]="hashlimit xdp tc" [match]="string xdp tc" [drop]="xdp tc nftables")
  case $previous in
    -i | --interface) mapfile -t COMPREPLY < <(compgen -W "$(command ls /sys/class/net)" -- "$current") && return ;;
    --netns) mapfile -t COMPREPLY < <(compgen -W "$(command ls /run/netns 2>/dev/null)" -- "$current") && return ;;
    --format)
      local formats="html md json sh"
      [[ $verb == policy ]] && formats="nft iptables sh"
      mapfile -t COMPREPLY < <(compgen -W "$formats" -- "$current") && return
      ;;
    --via) mapfile -t COMPREPLY < <(compgen -W "${places[$verb]}" -- "$current") && return ;;
    --proto) mapfile -t COMPREPLY < <(compgen -W "tcp udp icmp icmpv6 gre" -- "$current") && return ;;
    --level) mapfile -t COMPREPLY < <(compgen -W "open protected closed" -- "$current") && return ;;
    --ttl) mapfile -t COMPREPLY < <(compgen -W "30s 10m 2h 1d" -- "$current") && return ;;
    -o | --output | --jsonl | --alarms | --automatic | --geoip | --svg | --capture | --check | --file) mapfile -t COMPREPLY < <(compgen -f -- "$current") && return ;;
    --directory | --history) mapfile -t COMPREPLY < <(compgen -d -- "$current") && return ;;
  esac
  local options="--help" rule="--ttl --preview --yes --force --json --netns"
  case $verb in
    "" | watch) options+=" -i --interface --netns --geoip --slow --readonly --no-store" ;;
    snapshot) options+=" -i --interface --netns --seconds --no-store --json --top --geoip" ;;
    read) mapfile -t COMPREPLY < <(compgen -f -W "$options --text --json --explain --top --geoip" -- "$current") && return ;;
    record) options+=" -i --interface --netns --geoip --jsonl --every --top --max-mib --metrics --metrics-public --alarms --no-alarms --automatic" ;;
    service) options+=" status enable disable restart" ;;
    alarms) options+=" show test --alarms" ;;
    list) options+=" create add remove test show replace save delete --ttl --force -o --output --json --netns" ;;
    block) options+=" --via --list --replace --close-open $rule -4 -6" ;;
    protect) options+=" --level --acl --priority --strict --no-strict $rule -4 -6" ;;
    limit) options+=" --proto --dport --per --per6 --rate --connections --close-open --burst --by-port --via $rule -4 -6" ;;
    match) options+=" --string --hex --dns --type --mask --offset --proto --dport --via $rule -4 -6" ;;
    drop) options+=" --from --proto --sport --dport --length --ttl-field --tcp-flags --icmp-type --ip-id --tcp-seq --window --tcp-header --fragment --via $rule -4 -6" ;;
    notrack) options+=" --proto --dport $rule -4 -6" ;;
    synproxy) options+=" --dport --to $rule -4 -6" ;;
    sysctl) options+=" $rule" ;;
    harden) options+=" conntrack stateless resolver --plan --apply --session $rule" ;;
    apply) options+=" --old $rule" ;;
    status) options+=" --all --json --netns" ;;
    keep) options+=" --ttl --netns" ;;
    repair) options+=" --netns" ;;
    undo) options+=" --all --netns" ;;
    why) options+=" --json --netns" ;;
    events) options+=" --every --json --netns" ;;
    rules) options+=" --watch --every --readings --ours --json --netns" ;;
    policy) options+=" check diff apply history rollback boot export schema --file --format -o --output --yes --confirm --force --json --netns" ;;
    sessions) options+=" --json --directory" ;;
    report) options+=" --directory --format -o --output --bundle" ;;
    replay) options+=" --directory --json --top --speed" ;;
    trends) options+=" -i --interface --netns --directory --json" ;;
    config) options+=" --show --check --sample --json" ;;
    doctor) options+=" -i --interface --json --geoip" ;;
    bench) options+=" list --corpus --calibrate --svg --json --quick --rounds --seed" ;;
    lab) options+=" list --seconds --pps --capture --history --json --store" ;;
  esac
  [[ $verb ]] || options+=" $verbs"
  mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
}
complete -F _fwtop fwtop
