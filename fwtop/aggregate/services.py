"""Names of well-known services: IANA's where there is one, else what operators call the port.

Those that are abused as amplifiers follow US-CERT TA14-017A and the lists of Shadowserver and Netscout.
"""

from __future__ import annotations

_BOTH = {
    **{7: "echo", 9: "discard", 13: "daytime", 17: "qotd", 19: "chargen", 37: "time", 53: "dns"},
    **{88: "kerberos", 111: "rpcbind", 389: "ldap", 427: "slp", 443: "https", 500: "isakmp", 514: "syslog"},
    **{853: "dns-tls", 1194: "openvpn", 1433: "mssql", 1434: "mssql-browser", 1701: "l2tp", 1883: "mqtt"},
    **{2049: "nfs", 3389: "rdp", 3478: "stun", 5060: "sip", 5061: "sips", 5353: "mdns", 5683: "coap"},
    **{9987: "teamspeak", 11211: "memcached", 25565: "minecraft", 27015: "steam", 30303: "ethereum"},
}
_TCP = {
    **{20: "ftp-data", 21: "ftp", 22: "ssh", 23: "telnet", 25: "smtp", 43: "whois", 80: "http", 110: "pop3"},
    **{119: "nntp", 135: "msrpc", 139: "netbios-ssn", 143: "imap", 179: "bgp", 445: "smb", 465: "smtps"},
    **{554: "rtsp", 587: "submission", 631: "ipp", 636: "ldaps", 873: "rsync", 993: "imaps", 995: "pop3s"},
    **{1080: "socks", 1521: "oracle", 1723: "pptp", 2375: "docker", 2379: "etcd", 3128: "squid"},
    **{3306: "mysql", 5432: "postgresql", 5672: "amqp", 5900: "vnc", 6379: "redis", 6443: "kubernetes"},
    **{
        6667: "irc",
        8000: "http-alt",
        8080: "http-alt",
        8443: "https-alt",
        9000: "http-alt",
        9090: "http-alt",
    },
    **{9092: "kafka", 9200: "elasticsearch", 10000: "webmin", 27017: "mongodb"},
}
_UDP = {
    **{
        67: "dhcp-server",
        68: "dhcp",
        69: "tftp",
        80: "http3",
        123: "ntp",
        137: "netbios",
        138: "netbios-dgm",
    },
    **{161: "snmp", 162: "snmp-trap", 177: "xdmcp", 389: "cldap", 443: "quic", 520: "rip", 623: "ipmi"},
    **{1604: "citrix-ica", 1812: "radius", 1813: "radius-acct", 1900: "ssdp", 3074: "xbox", 3283: "arms"},
    **{3702: "ws-discovery", 4500: "ipsec-nat-t", 4789: "vxlan", 5093: "sentinel", 5351: "nat-pmp"},
    **{6881: "bittorrent", 7001: "afs", 10001: "ubiquiti", 10074: "mitel-tp240", 20800: "cod"},
    **{27005: "steam-client", 27960: "quake", 32414: "plex", 32410: "plex", 33848: "jenkins"},
    **{34567: "dvrip", 37810: "dvr-dhcpdiscover", 41794: "crestron", 47808: "bacnet", 51820: "wireguard"},
    **{64738: "mumble", 4500: "ipsec-nat-t", 2302: "arma", 28015: "rust"},
}
SERVICES: dict[tuple[str, int], str] = {
    **{(protocol, port): name for protocol in ("tcp", "udp") for port, name in _BOTH.items()},
    **{("tcp", port): name for port, name in _TCP.items()},
    **{("udp", port): name for port, name in _UDP.items()},
}
