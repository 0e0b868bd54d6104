using System;
using System.IO;
using System.Net;
using System.Net.Http;
using System.Net.Sockets;
using System.Text;
using System.Threading;
using System.Threading.Tasks;

/// An echo server, a server of HTTP, and clients of both: Servers PORT PORT2 | client PORT PORT2
public static class Servers {
    static async Task Serve(int port, Func<TcpClient, Task> serve) {
        var listener = new TcpListener(IPAddress.Loopback, port);
        listener.Start();
        while (true) {
            var client = await listener.AcceptTcpClientAsync();
            client.NoDelay = true;
            ThreadPool.QueueUserWorkItem(_ => serve(client));
        }
    }

    static async Task Echo(TcpClient client) {
        using (client) {
            var stream = client.GetStream();
            var buffer = new byte[65536];
            int count;
            while ((count = await stream.ReadAsync(buffer, 0, buffer.Length)) > 0) {
                await stream.WriteAsync(buffer, 0, count);
            }
        }
    }

    // The framework's own server wants an OpenSSL of its time.
    static async Task Answer(TcpClient client) {
        using (client) {
            var stream = client.GetStream();
            var reader = new StreamReader(stream);
            string line;
            while ((line = await reader.ReadLineAsync()) != null) {
                var body = Body(int.Parse(line.Split(' ')[1].Substring(1)));
                while (await reader.ReadLineAsync() != "") {
                }
                var head = "HTTP/1.1 200 OK\r\nContent-Length: " + body.Length + "\r\n\r\n";
                var bytes = Encoding.ASCII.GetBytes(head);
                await stream.WriteAsync(bytes, 0, bytes.Length);
                await stream.WriteAsync(body, 0, body.Length);
            }
        }
    }

    static byte[] Body(int length) {
        var body = new byte[length];
        for (int at = 0; at < length; at++) {
            body[at] = (byte)(at * 31 + at / 256);
        }
        return body;
    }

    // Blocking calls of one thread.
    static void Rounds(int port) {
        using (var client = new TcpClient()) {
            client.Connect(IPAddress.Loopback, port);
            client.NoDelay = true;
            var stream = client.GetStream();
            for (int round = 0; round < 20000; round++) {
                var sent = new byte[1 + round % 4000];
                Array.Fill(sent, (byte)round);
                stream.Write(sent, 0, sent.Length);
                Check(stream, sent);
            }
        }
        Console.WriteLine("every byte came back");
    }

    static void Check(Stream stream, byte[] wanted) {
        var got = new byte[wanted.Length];
        for (int have = 0; have < got.Length;) {
            int count = stream.Read(got, have, got.Length - have);
            if (count == 0) {
                throw new IOException("the connection ended");
            }
            have += count;
        }
        for (int at = 0; at < got.Length; at++) {
            if (got[at] != wanted[at]) {
                throw new IOException("byte " + at + " came back different");
            }
        }
    }

    // Eight connections at a time, reading while they write.
    static async Task Streams(int port) {
        var all = new Task[8];
        for (int number = 0; number < all.Length; number++) {
            all[number] = Task.Run(() => Stream(port));
        }
        await Task.WhenAll(all);
        Console.WriteLine("every stream came back");
    }

    static async Task Stream(int port) {
        using (var client = new TcpClient()) {
            await client.ConnectAsync(IPAddress.Loopback, port);
            var stream = client.GetStream();
            var sent = Body(4000000);
            var reading = Task.Run(() => Check(stream, sent));
            await stream.WriteAsync(sent, 0, sent.Length);
            client.Client.Shutdown(SocketShutdown.Send);
            await reading;
            if (stream.ReadByte() != -1) {
                throw new IOException("there is more");
            }
        }
    }

    static async Task Requests(int port) {
        using (var client = new HttpClient()) {
            foreach (int length in new[] { 0, 1, 1000, 65536, 1000000, 12345678 }) {
                for (int round = 0; round < 30; round++) {
                    var body = await client.GetByteArrayAsync("http://127.0.0.1:" + port + "/" + length);
                    Check(new MemoryStream(body), Body(length));
                    if (body.Length != length) {
                        throw new IOException("there is more");
                    }
                }
                Console.WriteLine(length + " bytes thirty times");
            }
        }
    }

    public static int Main(string[] words) {
        if (words[0] == "client") {
            Rounds(int.Parse(words[1]));
            Streams(int.Parse(words[1])).Wait();
            Requests(int.Parse(words[2])).Wait();
            return 0;
        }
        Task.WhenAll(Serve(int.Parse(words[0]), Echo), Serve(int.Parse(words[1]), Answer)).Wait();
        return 0;
    }
}
