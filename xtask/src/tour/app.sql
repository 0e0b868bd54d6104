CREATE ROLE app LOGIN;
CREATE DATABASE app OWNER app;
\connect app
CREATE TABLE items (id int PRIMARY KEY, body text NOT NULL);
INSERT INTO items SELECT n, 'item ' || n || E'\n' || repeat('0123456789abcdef', n)
    FROM generate_series(1, 200) AS n;
GRANT SELECT ON items TO app;
