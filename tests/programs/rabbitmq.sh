# what: RabbitMQ (Erlang): 4,530 messages of 1 byte to 1 MB confirmed and acknowledged, by AMQP
# needs: rabbitmq-server:rabbitmq-server epmd:erlang-base python3:python3 /usr/lib/python3/dist-packages/pika:python3-pika

broker() {
    export HOME=$HERE RABBITMQ_NODENAME=case-$PORT@localhost RABBITMQ_NODE_PORT=$PORT
    export RABBITMQ_DIST_PORT=$PORT2 ERL_EPMD_PORT=$PORT3 RABBITMQ_MNESIA_BASE=$HERE/data
    export RABBITMQ_LOG_BASE=$HERE/log RABBITMQ_ENABLED_PLUGINS_FILE=$HERE/plugins
    export RABBITMQ_CONFIG_FILE=$HERE/rabbitmq RABBITMQ_PID_FILE=$HERE/pid
    export RABBITMQ_CONF_ENV_FILE=$HERE/none
}

prepare() {
    echo 'log.console = false' >rabbitmq.conf
    echo '[].' >plugins
}

server() {
    broker
    exec /usr/lib/rabbitmq/bin/rabbitmq-server
}

client() {
    python3 "$CASES/amqp.py" "$PORT"
}
