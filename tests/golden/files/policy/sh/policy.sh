#!/bin/sh
# The policy policy.toml, written by 'fwtop policy export'.
# Run it as root; with the argument 'remove' it takes the policy out.
# Of the allow-list it has what the operator lists, not what fwtop finds, as SSH sessions.
set -eu

# It needs these programs, and changes nothing without one of them.
for program in ipset iptables iptables-restore ip6tables ip6tables-restore; do
  command -v "$program" >/dev/null || { echo "$program is not installed" >&2; exit 1; }
done

# Chains and sets have names of their own; nothing else is touched.
take_out() {
  for program in iptables ip6tables; do
    while $program -t raw -D PREROUTING -j POLICY 2>/dev/null; do :; done
    while $program -t raw -D OUTPUT -j POLICY-OUT 2>/dev/null; do :; done
    while $program -t mangle -D PREROUTING -j POLICY-OPEN 2>/dev/null; do :; done
    $program -t raw -F POLICY 2>/dev/null || :
    $program -t raw -F POLICY-PORTS 2>/dev/null || :
    $program -t raw -F POLICY-OUT 2>/dev/null || :
    $program -t mangle -F POLICY-OPEN 2>/dev/null || :
    $program -t raw -X POLICY 2>/dev/null || :
    $program -t raw -X POLICY-PORTS 2>/dev/null || :
    $program -t raw -X POLICY-OUT 2>/dev/null || :
    $program -t mangle -X POLICY-OPEN 2>/dev/null || :
  done
  for set in $(ipset list -n); do
    case $set in policy-*) ipset destroy "$set" ;; esac
  done
}

take_out
[ "${1:-}" != remove ] || exit 0

ipset restore <<'END'
create policy-allow-4 hash:net family inet hashsize 64 maxelem 64 counters
create policy-allow-6 hash:net family inet6 hashsize 64 maxelem 64 counters
create policy-office-4 hash:net family inet hashsize 64 maxelem 64 counters
add policy-office-4 198.51.100.0/24
add policy-office-4 198.51.100.7
create policy-office-6 hash:net family inet6 hashsize 64 maxelem 64 counters
add policy-office-6 2001:db8:7::/48
create policy-bad-4 hash:net family inet hashsize 64 maxelem 64 counters
add policy-bad-4 203.0.113.0/24
create policy-bad-6 hash:net family inet6 hashsize 64 maxelem 64 counters
add policy-bad-6 2001:db8:bad::/48
create policy-2-peers4 hash:ip,port family inet hashsize 32768 maxelem 65536 timeout 180 counters forceadd
create policy-2-peers6 hash:ip,port family inet6 hashsize 32768 maxelem 65536 timeout 180 counters forceadd
END

iptables-restore --noflush <<'END'
*raw
:POLICY - [0:0]
:POLICY-PORTS - [0:0]
:POLICY-OUT - [0:0]
-I PREROUTING 1 -j POLICY
-A POLICY -i lo -j RETURN
-A POLICY -m set --match-set policy-allow-4 src -j RETURN
-A POLICY -j POLICY-PORTS
-I OUTPUT 1 -j POLICY-OUT
-A POLICY-OUT -o lo -j RETURN
# 4: open, priority 10: IPv4 TCP to port 8080
-A POLICY-PORTS -p 6 -m tcp --dport 8080 -j RETURN
# 3: closed, strict: TCP to port 5432
-A POLICY-PORTS -p 6 -m tcp --dport 5432 -j DROP
# 2: protected, open to list office: UDP to port 443
-A POLICY-PORTS -p 17 -m udp --dport 443 -m set --match-set policy-2-peers4 src,src -j SET --add-set policy-2-peers4 src,src --exist
-A POLICY-PORTS -p 17 -m udp --dport 443 -m set --match-set policy-2-peers4 src,src -j RETURN
-A POLICY-OUT -p 17 --sport 443 -j SET --add-set policy-2-peers4 dst,dst --exist
-A POLICY-PORTS -p 17 -m udp --dport 443 -m set --match-set policy-office-4 src -j RETURN
-A POLICY-PORTS -p 17 -m udp --dport 443 -j DROP
# 1: protected, open to list office: TCP to port 443
-A POLICY-PORTS -p 6 -m tcp --dport 443 --syn -m set --match-set policy-office-4 src -j RETURN
-A POLICY-PORTS -p 6 -m tcp --dport 443 --syn -j DROP
# 5: block list bad
-A POLICY -m set --match-set policy-bad-4 src -j DROP
# 6: drop list bad in the driver
-A POLICY -m set --match-set policy-bad-4 src -j DROP
# 7: limit UDP to port 53 to 1,000/s per /24 (IPv6 /56)
-A POLICY -p 17 -m udp --dport 53 -m hashlimit --hashlimit-above 1000/sec --hashlimit-burst 2000 --hashlimit-mode srcip --hashlimit-srcmask 24 --hashlimit-htable-max 262144 --hashlimit-htable-expire 10000 --hashlimit-name policy-7-9670df0f-4 -j DROP
# 9: drop UDP to port 777 with hex deadbeef at byte 4
-A POLICY -p 17 -m udp --dport 777 -m u32 --u32 "4&0x1FFF=0x0&&0>>22&0x3C@12&0xFFFFFFFF=0xDEADBEEF" -j DROP
COMMIT
*mangle
:POLICY-OPEN - [0:0]
-I PREROUTING 1 -j POLICY-OPEN
-A POLICY-OPEN -i lo -j RETURN
-A POLICY-OPEN -m set --match-set policy-allow-4 src -j RETURN
# 8: limit TCP to port 443 to 100 connections per /32 (IPv6 /64)
-A POLICY-OPEN -p tcp --dport 443 --syn -m connlimit --connlimit-above 100 --connlimit-mask 32 --connlimit-saddr -j DROP
COMMIT
END

ip6tables-restore --noflush <<'END'
*raw
:POLICY - [0:0]
:POLICY-PORTS - [0:0]
:POLICY-OUT - [0:0]
-I PREROUTING 1 -j POLICY
-A POLICY -i lo -j RETURN
-A POLICY -p ipv6-icmp -m hl --hl-eq 255 --icmpv6-type 134 -j RETURN
-A POLICY -p ipv6-icmp -m hl --hl-eq 255 --icmpv6-type 135 -j RETURN
-A POLICY -p ipv6-icmp -m hl --hl-eq 255 --icmpv6-type 136 -j RETURN
-A POLICY -m set --match-set policy-allow-6 src -j RETURN
-A POLICY -j POLICY-PORTS
-I OUTPUT 1 -j POLICY-OUT
-A POLICY-OUT -o lo -j RETURN
# 4: open, priority 10: IPv4 TCP to port 8080
# 3: closed, strict: TCP to port 5432
-A POLICY-PORTS -p 6 -m tcp --dport 5432 -j DROP
# 2: protected, open to list office: UDP to port 443
-A POLICY-PORTS -p 17 -m udp --dport 443 -m set --match-set policy-2-peers6 src,src -j SET --add-set policy-2-peers6 src,src --exist
-A POLICY-PORTS -p 17 -m udp --dport 443 -m set --match-set policy-2-peers6 src,src -j RETURN
-A POLICY-OUT -p 17 --sport 443 -j SET --add-set policy-2-peers6 dst,dst --exist
-A POLICY-PORTS -p 17 -m udp --dport 443 -m set --match-set policy-office-6 src -j RETURN
-A POLICY-PORTS -p 17 -m udp --dport 443 -j DROP
# 1: protected, open to list office: TCP to port 443
-A POLICY-PORTS -p 6 -m tcp --dport 443 --syn -m set --match-set policy-office-6 src -j RETURN
-A POLICY-PORTS -p 6 -m tcp --dport 443 --syn -j DROP
# 5: block list bad
-A POLICY -m set --match-set policy-bad-6 src -j DROP
# 6: drop list bad in the driver
-A POLICY -m set --match-set policy-bad-6 src -j DROP
# 7: limit UDP to port 53 to 1,000/s per /24 (IPv6 /56)
-A POLICY -p 17 -m udp --dport 53 -m hashlimit --hashlimit-above 1000/sec --hashlimit-burst 2000 --hashlimit-mode srcip --hashlimit-srcmask 56 --hashlimit-htable-max 262144 --hashlimit-htable-expire 10000 --hashlimit-name policy-7-2c7fc6de-6 -j DROP
# 9: drop UDP to port 777 with hex deadbeef at byte 4
-A POLICY -p 17 -m udp --dport 777 -m u32 --u32 "52&0xFFFFFFFF=0xDEADBEEF" -j DROP
COMMIT
*mangle
:POLICY-OPEN - [0:0]
-I PREROUTING 1 -j POLICY-OPEN
-A POLICY-OPEN -i lo -j RETURN
-A POLICY-OPEN -m set --match-set policy-allow-6 src -j RETURN
# 8: limit TCP to port 443 to 100 connections per /32 (IPv6 /64)
-A POLICY-OPEN -p tcp --dport 443 --syn -m connlimit --connlimit-above 100 --connlimit-mask 64 --connlimit-saddr -j DROP
COMMIT
END
