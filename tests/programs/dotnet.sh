# what: .NET Core 3.1: servers with asynchronous calls, clients with blocking and asynchronous calls, HttpClient
# needs: mcs:mono-mcs
# dotnet: Servers.dll=Servers.cs

server() {
    exec "$BUILT/dotnet" "$BUILT/Servers.dll" "$PORT" "$PORT2"
}

ready() {
    await "$PORT2"
}

client() {
    "$BUILT/dotnet" "$BUILT/Servers.dll" client "$PORT" "$PORT2"
}
