"""Cases that try a DMQ node from outside: what it must accept and refuse, and how that is found out."""
