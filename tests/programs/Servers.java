import com.sun.net.httpserver.HttpServer;
import java.io.DataInputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.AsynchronousServerSocketChannel;
import java.nio.channels.AsynchronousSocketChannel;
import java.nio.channels.CompletionHandler;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Arrays;
import java.util.concurrent.Executors;

/** Two echo servers and one of HTTP, and a client of the former: Servers PORT PORT2 PORT3 | client PORT PORT2 */
public final class Servers {
    private static InetSocketAddress at(String port) {
        return new InetSocketAddress(InetAddress.getLoopbackAddress(), Integer.parseInt(port));
    }

    private static void selector(String port) throws Exception {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open().bind(at(port));
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel channel = listener.accept();
                    channel.configureBlocking(false);
                    ByteBuffer buffer = ByteBuffer.allocateDirect(65536);
                    channel.register(selector, SelectionKey.OP_READ, buffer);
                } else {
                    echo(key);
                }
            }
            selector.selectedKeys().clear();
        }
    }

    private static void echo(SelectionKey key) throws Exception {
        SocketChannel channel = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        if (key.isReadable() && channel.read(buffer) < 0) {
            channel.close();
            return;
        }
        buffer.flip();
        channel.write(buffer);
        buffer.compact();
        boolean full = !buffer.hasRemaining();
        boolean left = buffer.position() > 0;
        key.interestOps((full ? 0 : SelectionKey.OP_READ) | (left ? SelectionKey.OP_WRITE : 0));
    }

    private static void asynchronous(String port) throws Exception {
        AsynchronousServerSocketChannel listener = AsynchronousServerSocketChannel.open().bind(at(port));
        while (true) {
            AsynchronousSocketChannel channel = listener.accept().get();
            ByteBuffer buffer = ByteBuffer.allocateDirect(65536);
            channel.read(buffer, null, new CompletionHandler<Integer, Void>() {
                @Override
                public void completed(Integer count, Void nothing) {
                    try {
                        if (count < 0) {
                            channel.close();
                            return;
                        }
                        buffer.flip();
                        while (buffer.hasRemaining()) {
                            channel.write(buffer).get();
                        }
                        buffer.clear();
                        channel.read(buffer, null, this);
                    } catch (Exception error) {
                        throw new RuntimeException(error);
                    }
                }

                @Override
                public void failed(Throwable error, Void nothing) {
                }
            });
        }
    }

    private static void http(String port) throws Exception {
        HttpServer server = HttpServer.create(at(port), 0);
        server.createContext("/", exchange -> {
            byte[] body = new byte[Integer.parseInt(exchange.getRequestURI().getPath().substring(1))];
            Arrays.fill(body, (byte) 'x');
            exchange.sendResponseHeaders(200, body.length == 0 ? -1 : body.length);
            try (OutputStream out = exchange.getResponseBody()) {
                out.write(body);
            }
        });
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.start();
    }

    private static void client(String port) throws Exception {
        try (Socket socket = new Socket()) {
            socket.connect(at(port));
            DataInputStream in = new DataInputStream(socket.getInputStream());
            for (int round = 0; round < 20_000; round++) {
                byte[] sent = new byte[1 + round % 4000];
                Arrays.fill(sent, (byte) round);
                socket.getOutputStream().write(sent);
                byte[] got = new byte[sent.length];
                in.readFully(got);
                if (!Arrays.equals(sent, got)) {
                    throw new IllegalStateException("round " + round + " came back different");
                }
            }
        }
        System.out.println("every byte came back");
    }

    private interface Service {
        void run() throws Exception;
    }

    private static void start(Service service) {
        new Thread(() -> {
            try {
                service.run();
            } catch (Exception error) {
                throw new RuntimeException(error);
            }
        }).start();
    }

    public static void main(String[] words) throws Exception {
        if (words[0].equals("client")) {
            client(words[1]);
            client(words[2]);
            return;
        }
        start(() -> selector(words[0]));
        start(() -> asynchronous(words[1]));
        http(words[2]);
    }
}
