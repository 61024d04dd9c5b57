#!/bin/sh
# Powers this machine off when its time is over, or when its cluster has not been reached for too long: whoever rented
# it may be gone, and it costs money. Run every minute.
set -u
. /etc/warp/machine.env

mkdir -p /var/lib/warp
contact=/var/lib/warp/contact
now=$(date +%s)
if [ -n "$POWER_OFF_AT" ] && [ "$now" -ge "$POWER_OFF_AT" ]; then
  echo "warp-watch: its time is over"
  exec systemctl poweroff
fi
# Any answer that the cluster's own authority vouches for will do, a refusal too.
if [ ! -e "$contact" ] || curl --silent --output /dev/null --max-time 20 --cacert /etc/warp/ca.crt "$SERVER/livez"; then
  touch "$contact"
  exit 0
fi
last=$(stat -c %Y "$contact")
if [ $((now - last)) -ge "$ALONE_SECONDS" ]; then
  echo "warp-watch: $SERVER was not reached for $ALONE_SECONDS s"
  exec systemctl poweroff
fi
