# what: Java: NIO selector, asynchronous channels, com.sun.net.httpserver
# needs: java:openjdk-17-jre-headless javac:openjdk-17-jdk-headless curl:curl

prepare() {
    javac -d "$HERE" "$CASES/Servers.java"
}

server() {
    exec java -Xmx256m -cp "$HERE" Servers "$PORT" "$PORT2" "$PORT3"
}

ready() {
    await "$PORT2" "$PORT3"
}

client() {
    java -Xmx256m -cp "$HERE" Servers client "$PORT" "$PORT2"
    fetch "http://127.0.0.1:$PORT3"
}
