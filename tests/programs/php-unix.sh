# what: PHP-FPM behind nginx: FastCGI over a Unix socket, kept connections
# needs: php-fpm8.2:php8.2-fpm nginx:nginx-light curl:curl ab:apache2-utils

# shellcheck source=/dev/null
. "$CASES/php.sh"
export LISTENS=$HERE/fpm.sock
export REACHES=unix:$LISTENS
